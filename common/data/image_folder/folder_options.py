"""How a folder of images is read."""

from dataclasses import dataclass

from common.data.image_folder.scan import PARTS, normalised_name, printable_name
from common.errors import DataError

OWN_MEAN, OWN_STD = 0.5, 0.25


@dataclass(frozen=True)
class FolderOptions:
    """How a folder is read.

    Attributes:
        classes: the federation's class list, in order; None takes the names of the folders, so
            that clients with different folders would number them differently.
        size: height and width of every picture; None keeps the size if all pictures have the
            same, else takes the most common short side, 64 at most.
        channels: 1 (grey) or 3 (RGB); None is 1 if every picture is grey, else 3. In a federation
            fix `classes`, `size` and `channels`, so that all clients have the same model.
        max_bad: largest share of unusable files that is put up with.
        flip: whether a picture mirrored left to right still shows its class.
        mean, std: by which every channel is normalised; None counts them from the pictures.
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
            raise DataError(f"picture size is {self.size}, expected at least 1")
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
                "train and test "
                'are the parts of a folder, and its class folders are plain names without "/" or '
                'a leading "."; rename the class everywhere'
            )


def own_options(
    classes: tuple[str, ...], size: int, channels: int, max_bad: float = FolderOptions.max_bad
) -> FolderOptions:
    """Return how every client of a federation reads its own pictures.

    They are normalised by constants. A client's own statistics would make the same picture look
    different to the shared model, and statistics are data that need not leave a client.
    """
    return FolderOptions(classes, size, channels, max_bad, mean=OWN_MEAN, std=OWN_STD)


def _nameable(name: str) -> bool:
    reserved = name.strip().casefold() in PARTS
    return bool(name) and not reserved and name[0] != "." and "/" not in name and name.isprintable()
