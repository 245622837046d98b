"""Decode the images of a folder into a memory-mapped cache.

The images are decoded once, and again when a file, the size or the class list changes. Unusable
files are skipped and listed with the reason.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import pixel_statistics
from common.data.image_folder.cache import META, ImageCache, digest, open_or_build, write_rows
from common.data.image_folder.folder_options import FolderOptions
from common.data.image_folder.image_file import (
    Header,
    Size,
    UnusableImageError,
    quiet,
    read_header,
    read_pixels,
)
from common.data.image_folder.scan import (
    FolderContents,
    ImageFile,
    file_fingerprint,
    printable_name,
)
from common.errors import DataError

MAX_SIDE = 64  # pixels, without data.image-size
THREADS = 4
HEADER_BYTES = 1 << 10  # memory per file while the headers are read
BATCH_BYTES = 1 << 26  # of decoded images that wait to be written
LISTED = 20  # unusable files named in a message; meta.json of the cache lists all
VERSION = 3  # part of the cache key; increase it when the same files give other pixels

T = TypeVar("T")


def decode_folder(path: Path, contents: FolderContents, options: FolderOptions) -> ImageCache:
    """Return the cache of a folder's images, decoded now if necessary.

    Args:
        path: the folder.
        contents: its files and classes.
        options: size and channels of the decoded images.

    Raises:
        DataError: no file can be used, or the cache cannot be written.
    """
    return open_or_build(
        path,
        digest([VERSION, options.size, options.channels, contents.classes]),
        digest([file_fingerprint(path, file.name) for file in contents.files]),
        partial(_build, contents.files, path, options),
    )


def skipped_files(cache: ImageCache) -> tuple[tuple[str, str], ...]:
    """Return (file, reason) of every file that could not be used."""
    return tuple((name, reason) for name, reason in cache.meta["skipped"])


def list_skipped(skipped: Sequence[tuple[str, str]]) -> str:
    """Return one line for each of the first LISTED files, and the number of the others."""
    lines = [f"\n  {name}: {reason}" for name, reason in skipped[:LISTED]]
    more = len(skipped) - len(lines)
    return "".join(lines) + (f"\n  and {more} more" if more else "")


def _build(files: Sequence[ImageFile], root: Path, options: FolderOptions, cache_dir: Path) -> None:
    """Decode all files into the folder `cache_dir`."""
    with quiet(), ThreadPoolExecutor(THREADS) as pool:
        skipped: list[tuple[str, str]] = []

        def usable(
            read: Callable[[Path], T], chosen: Sequence[ImageFile], width: int
        ) -> Iterator[tuple[ImageFile, T]]:
            step = max(1, BATCH_BYTES // width)
            for start in range(0, len(chosen), step):
                batch = chosen[start : start + step]
                for file, result in zip(
                    batch, pool.map(partial(_try, read, root), batch), strict=True
                ):
                    if isinstance(result, str):
                        skipped.append((printable_name(file.name), result))
                    else:
                        yield file, result

        headers = list(usable(read_header, files, width=HEADER_BYTES))
        target = _common_size([header for _, header in headers], options.size)
        grey = options.channels == 1
        if options.channels is None:
            grey = all(header.grey for _, header in headers)
        decoded: list[ImageFile] = []

        shape = (1 if grey else 3, *target)

        def rows() -> Iterator[NDArray[np.uint8]]:
            read = partial(read_pixels, size=target, grey=grey)
            for file, pixels in usable(read, [file for file, _ in headers], prod(shape)):
                decoded.append(file)
                yield pixels

        write_rows(cache_dir / "images.npy", shape, len(headers), rows())
    skipped.sort()
    if not decoded:
        raise DataError(
            f"{len(files)} of {len(files)} files cannot be used: repair or replace them\n"
            f"in {root}:{list_skipped(skipped)}"
        )
    np.save(cache_dir / "labels.npy", np.array([file.label for file in decoded], dtype=np.int64))
    train_size = sum(file.part == "train" for file in decoded)
    images = np.load(cache_dir / "images.npy", mmap_mode="r")
    mean, std = pixel_statistics(images[:train_size] if train_size else images)
    sizes = sorted({header.size for _, header in headers}, key=prod)
    meta = {
        "train_size": train_size,
        "mean": mean,
        "std": std,
        "sizes": [sizes[0], sizes[-1]],
        "grey": sum(header.grey for _, header in headers),
        "skipped": skipped,
    }
    (cache_dir / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _try(read: Callable[[Path], T], root: Path, file: ImageFile) -> T | str:
    try:
        return read(root / file.name)
    except UnusableImageError as reason:
        return str(reason)


def _common_size(headers: Sequence[Header], size: int | None) -> Size:
    if size is not None:
        return size, size
    sizes = {header.size for header in headers}
    if len(sizes) == 1:
        return sizes.pop()
    sides = Counter(min(header.size) for header in headers)
    side = min(max(sides, key=lambda side: (sides[side], side), default=1), MAX_SIDE)
    return side, side
