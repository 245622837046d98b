"""Report on a folder of images, before its owner joins a federation."""

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
    """The contents of a folder, for its owner. Only counts may leave the client.

    Attributes:
        counts: usable images by part ("train", "test") and class, in the federation's order. A
            class without images has 0.
        files: number of files in known class folders, usable or not.
        skipped: (file, reason) of every unusable file.
        left_out: number of files that are not used although they could be read, by kind.
        smallest: height and width of the smallest image in pixels, before scaling.
        largest: height and width of the largest image in pixels, before scaling.
        grey: number of grey images.
        shape: channels, height and width of the model's input.
        problems: the error messages that `load_folder` would raise. Empty if it would succeed.
    """

    counts: Mapping[str, Mapping[str, int]]
    files: int
    skipped: tuple[tuple[str, str], ...]
    smallest: Size
    largest: Size
    grey: int
    shape: tuple[int, int, int]
    problems: tuple[str, ...]
    left_out: Mapping[str, int]

    @property
    def usable(self) -> int:
        """Number of usable images."""
        return sum(sum(part.values()) for part in self.counts.values())


def inspect_folder(path: Path, options: FolderOptions | None = None) -> FolderReport:
    """Decode every image of a folder and return the report. `load_folder` reuses the cache.

    Raises:
        DataError: no file in the folder can be used.
    """
    options = options or FolderOptions()
    contents = scan_folder(path, options.classes)
    problems = [unknown_classes(path, contents)] if contents.unknown else []
    if not contents.files:
        raise DataError(problems[0])
    cache = decode_folder(path, contents, options)
    skipped, files = skipped_files(cache), len(contents.files)
    if len(skipped) > options.max_bad * files:
        problems.append(too_many_skipped(path, skipped, files, options.max_bad))
    train, test = np.split(cache.labels, [cache.meta["train_size"]])
    smallest, largest = ((height, width) for height, width in cache.meta["sizes"])
    channels, height, width = cache.images.shape[1:]
    return FolderReport(
        counts={
            part: _per_class(labels, contents.classes)
            for part, labels in zip(PARTS, (train, test), strict=True)
        },
        files=files,
        skipped=skipped,
        smallest=smallest,
        largest=largest,
        grey=cache.meta["grey"],
        shape=(channels, height, width),
        problems=tuple(problems),
        left_out=contents.left_out,
    )


def _per_class(labels: NDArray[np.int64], classes: tuple[str, ...]) -> dict[str, int]:
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    return dict(zip(classes, counts, strict=True))
