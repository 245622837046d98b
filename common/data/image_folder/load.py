"""Load a folder of images, PATH/train/<class>/... and PATH/test/<class>/..., as a data set.

The first line of an error holds counts only, because it may leave the client. The names of files
and folders are on further lines, which stay on this machine.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.data.dataset import Dataset
from common.data.image_folder.cache import META
from common.data.image_folder.decode import decode_folder, list_skipped, skipped_files
from common.data.image_folder.folder_options import FolderOptions
from common.data.image_folder.scan import FolderContents, scan_folder
from common.errors import DataError

logger = logging.getLogger(__name__)


def load_folder(path: Path, options: FolderOptions | None = None) -> Dataset:
    """Load the images of a folder in one of the two layouts of `scan_folder`.

    Raises:
        DataError: the folder is missing or has no images, has a class that the federation does not
            know, or has too many unusable files.
    """
    options = options or FolderOptions()
    contents = scan_folder(path, options.classes)
    if contents.unknown:
        raise DataError(unknown_classes(path, contents))
    cache = decode_folder(path, contents, options)
    skipped, total = skipped_files(cache), len(contents.files)
    if len(skipped) > options.max_bad * total:
        raise DataError(too_many_skipped(path, skipped, total, options.max_bad))
    if skipped:
        logger.warning(
            "%d of %d files in %s are skipped; %s says which and why",
            *(len(skipped), total, path, cache.folder / META),
        )
    if contents.left_out:
        logger.warning("%s: not used: %s", path, left_out_text(contents.left_out))
    channels = cache.images.shape[1]
    return Dataset(
        name=f"folder:{path}",
        images=cache.images,
        labels=cache.labels,
        classes=contents.classes,
        train_size=cache.meta["train_size"],
        mean=_per_channel(channels, options.mean) or tuple(cache.meta["mean"]),
        std=_per_channel(channels, options.std) or tuple(cache.meta["std"]),
        flip=options.flip,
        skipped=skipped,
        left_out=contents.left_out,
    )


def left_out_text(left_out: Mapping[str, int]) -> str:
    """Return the numbers of files that are not used, in one line."""
    return ", ".join(f"{count} {kind}" for kind, count in left_out.items())


def unknown_classes(path: Path, contents: FolderContents) -> str:
    """Return the error message about class folders that the federation does not know."""
    listed = "".join(f"\n  {name}" for name in contents.unknown)
    return (
        f"{len(contents.unknown)} folders are no class of the federation: rename or move them; the "
        f"classes are: {', '.join(contents.classes)}\nin {path}:{listed}"
    )


def too_many_skipped(
    path: Path, skipped: Sequence[tuple[str, str]], total: int, max_bad: float
) -> str:
    """Return the error message about too many unusable files."""
    return (
        f"{len(skipped)} of {total} files cannot be used, at most {max_bad:.1%} of them may be "
        f"bad: repair or remove them, or raise data.max-bad\nin {path}:{list_skipped(skipped)}"
    )


def _per_channel(channels: int, value: float | None) -> tuple[float, ...] | None:
    return None if value is None else (value,) * channels
