"""Options for reading a folder of images."""

from dataclasses import dataclass

from common.data.image_folder.scan import PARTS, normalised_name, printable_name
from common.errors import DataError

OWN_MEAN, OWN_STD = 0.5, 0.25


@dataclass(frozen=True)
class FolderOptions:
    """Options for reading a folder.

    Attributes:
        classes: the federation's class list, in order. None uses the names of the folders, so
            clients with different folders would number the classes differently.
        size: height and width of every image in pixels. None keeps the size if all images have
            the same size. Otherwise it is the most common shorter side, at most 64.
        channels: 1 (grey) or 3 (RGB). None is 1 if every image is grey, otherwise 3. A federation
            must fix `classes`, `size` and `channels`, so that all clients have the same model.
        max_bad: largest tolerated share of unusable files, 0..1.
        flip: whether an image flipped left to right still shows its class.
        mean: mean for normalising every channel. None computes it from the images.
        std: standard deviation for normalising every channel, None together with `mean`.
    """

    classes: tuple[str, ...] | None = None
    size: int | None = None
    channels: int | None = None
    max_bad: float = 0.05
    flip: bool = True
    mean: float | None = None
    std: float | None = None

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise DataError(f"image size is {self.size}, expected at least 1")
        if self.channels not in (None, 1, 3):
            raise DataError(f"channels is {self.channels}, expected 1 or 3")
        if not 0 <= self.max_bad <= 1:
            raise DataError(f"max_bad is {self.max_bad}, expected 0..1")
        if (self.mean is None) != (self.std is None) or not (self.std is None or self.std > 0):
            raise DataError(f"mean is {self.mean} and std {self.std}, expected std > 0, or neither")
        names = self.classes or ()
        if len(set(map(normalised_name, names))) != len(names):
            raise DataError(f"class list names a class twice: {', '.join(names)}")
        if impossible := [name for name in names if not _nameable(name)]:
            raise DataError(
                f"a class cannot be called {', '.join(map(printable_name, impossible))}: "
                "train and test are the parts of a folder, and the name of a class is not empty "
                'and has no "/", no leading "." and no control character; rename the class '
                "everywhere"
            )


def own_options(
    classes: tuple[str, ...], size: int, channels: int, max_bad: float = FolderOptions.max_bad
) -> FolderOptions:
    """Return the options with which every client of a federation reads its own images.

    Constants normalise the images. With a client's own statistics, the same image would look
    different to the shared model at each client.
    """
    return FolderOptions(classes, size, channels, max_bad, mean=OWN_MEAN, std=OWN_STD)


def _nameable(name: str) -> bool:
    reserved = name.strip().casefold() in PARTS
    return bool(name) and not reserved and name[0] != "." and "/" not in name and name.isprintable()
