"""What a folder of pictures holds, before a federation is joined."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.data.image_folder.decode import decode_folder, skipped_files
from common.data.image_folder.folder_options import FolderOptions
from common.data.image_folder.image_file import Size
from common.data.image_folder.load import too_many_skipped, unknown_classes
from common.data.image_folder.scan import PARTS, scan_folder
from common.errors import DataError


@dataclass(frozen=True)
class FolderReport:
    """For the eyes of the folder's owner: only counts may leave the client.

    Attributes:
        counts: usable pictures by part ("train", "test") and class, in the federation's order;
            a class without pictures has 0.
        files: files in known class folders, usable or not.
        skipped: (file, reason) of every file that cannot be used.
        smallest: height and width of the smallest picture found, before it is scaled.
        largest: likewise of the largest.
        grey: number of the pictures found that are grey.
        shape: channels, height and width of what the model gets.
        problems: what `load_folder` would refuse, each as its error would say it; none is good.
    """

    counts: Mapping[str, Mapping[str, int]]
    files: int
    skipped: tuple[tuple[str, str], ...]
    smallest: Size
    largest: Size
    grey: int
    shape: tuple[int, int, int]
    problems: tuple[str, ...]

    @property
    def usable(self) -> int:
        """Number of usable pictures."""
        return sum(sum(part.values()) for part in self.counts.values())


def inspect_folder(path: Path, options: FolderOptions | None = None) -> FolderReport:
    """Look at every picture of a folder, and leave them decoded for `load_folder`.

    Raises:
        DataError: nothing in the folder can be used.
    """
    options = options or FolderOptions()
    found = scan_folder(path, options.classes)
    problems = [unknown_classes(path, found)] if found.unknown else []
    if not found.files:
        raise DataError(problems[0])
    cache = decode_folder(path, found, options)
    skipped, files = skipped_files(cache), len(found.files)
    if len(skipped) > options.max_bad * files:
        problems.append(too_many_skipped(path, skipped, files, options.max_bad))
    train, test = np.split(cache.labels, [cache.meta["train_size"]])
    smallest, largest = ((height, width) for height, width in cache.meta["sizes"])
    channels, height, width = cache.images.shape[1:]
    return FolderReport(
        counts={
            part: _per_class(labels, found.classes)
            for part, labels in zip(PARTS, (train, test), strict=True)
        },
        files=files,
        skipped=skipped,
        smallest=smallest,
        largest=largest,
        grey=cache.meta["grey"],
        shape=(channels, height, width),
        problems=tuple(problems),
    )


def _per_class(labels: NDArray[np.int64], classes: tuple[str, ...]) -> dict[str, int]:
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    return dict(zip(classes, counts, strict=True))
