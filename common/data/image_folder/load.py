"""Folders of pictures, PATH/train/<class>/... and PATH/test/<class>/..., as a data set."""

import logging
from collections.abc import Sequence
from pathlib import Path

from common.data.dataset import Dataset
from common.data.image_folder.cache import META
from common.data.image_folder.decode import decode_folder, list_skipped, skipped_files
from common.data.image_folder.folder_options import FolderOptions
from common.data.image_folder.scan import FolderContents, scan_folder
from common.errors import DataError

logger = logging.getLogger(__name__)


def load_folder(path: Path, options: FolderOptions | None = None) -> Dataset:
    """Read the pictures of a folder in one of the two layouts of `scan.find`.

    Raises:
        DataError: no such folder, no pictures, a class that the federation does not know, or too
            many unusable files.
    """
    options = options or FolderOptions()
    found = scan_folder(path, options.classes)
    if found.unknown:
        raise DataError(unknown_classes(path, found))
    cache = decode_folder(path, found, options)
    skipped, total = skipped_files(cache), len(found.files)
    if len(skipped) > options.max_bad * total:
        raise DataError(too_many_skipped(path, skipped, total, options.max_bad))
    if skipped:
        logger.warning(
            "%d of %d files in %s are skipped; %s says which and why",
            *(len(skipped), total, path, cache.folder / META),
        )
    channels = cache.images.shape[1]
    return Dataset(
        name=f"folder:{path}",
        images=cache.images,
        labels=cache.labels,
        classes=found.classes,
        train_size=cache.meta["train_size"],
        mean=_every(channels, options.mean) or tuple(cache.meta["mean"]),
        std=_every(channels, options.std) or tuple(cache.meta["std"]),
        flip=options.flip,
        skipped=skipped,
    )


def unknown_classes(path: Path, found: FolderContents) -> str:
    """Say which class folders the federation does not know; the names begin on the second line."""
    listed = "".join(f"\n  {name}" for name in found.unknown)
    return (
        f"{len(found.unknown)} folders are no class of the federation: rename or move them; the "
        f"classes are: {', '.join(found.classes)}\nin {path}:{listed}"
    )


def too_many_skipped(
    path: Path, skipped: Sequence[tuple[str, str]], total: int, max_bad: float
) -> str:
    """Say that too many files cannot be used; the names begin on the second line."""
    return (
        f"{len(skipped)} of {total} files cannot be used, at most {max_bad:.1%} of them may be "
        f"bad: repair or remove them, or raise data.max-bad\nin {path}:{list_skipped(skipped)}"
    )


def _every(channels: int, value: float | None) -> tuple[float, ...] | None:
    return None if value is None else (value,) * channels
