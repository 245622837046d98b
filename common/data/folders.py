"""Folders of pictures, PATH/train/<class>/... and PATH/test/<class>/..., as a data set.

Decoded once into a memory-mapped cache, and again when a file, the size or the class list
changes. Files that cannot be used are listed with their reason and left out. The first line of
an error holds counts only: that line may leave the client, the names below it may not.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from common.data.cache import META, Cached, cached, digest, write_rows
from common.data.dataset import Dataset, pixel_statistics
from common.data.images import Header, Size, UnusablePictureError, quiet, read_header, read_pixels
from common.data.scan import PARTS, File, Found, find, fingerprint, plain, shown
from common.errors import DataError

logger = logging.getLogger(__name__)

MAX_SIDE = 64
THREADS = 4
HEADER_BYTES = 1 << 10
BATCH_BYTES = 1 << 26  # of decoded pictures that wait to be written
LISTED = 20  # bad files named in a message; the cache's meta.json has them all
VERSION = 2  # part of the cache's key; raise it when the same files give other pixels
OWN_MEAN, OWN_STD = 0.5, 0.25

T = TypeVar("T")


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
        if len(set(map(plain, names))) != len(names):
            raise DataError(f"class list names a class twice: {', '.join(names)}")
        if impossible := [name for name in names if not _nameable(name)]:
            raise DataError(
                f"a class cannot be called {', '.join(map(shown, impossible))}: train and test "
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


def load_folder(path: Path, options: FolderOptions | None = None) -> Dataset:
    """Read the pictures of a folder in one of the two layouts of `scan.find`.

    Raises:
        DataError: no such folder, no pictures, a class that the federation does not know, or too
            many unusable files.
    """
    options = options or FolderOptions()
    found = find(path, options.classes)
    if found.unknown:
        raise DataError(unknown_classes(path, found))
    cache = decoded(path, found, options)
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


def decoded(path: Path, found: Found, options: FolderOptions) -> Cached:
    """Return the cache of these files, decoding them if need be.

    Raises:
        DataError: none of them can be used, or there is no place for a cache.
    """
    return cached(
        path,
        digest([VERSION, options.size, options.channels, found.classes]),
        digest([fingerprint(path, file.name) for file in found.files]),
        partial(_build, found.files, path, options),
    )


def skipped_files(cache: Cached) -> tuple[tuple[str, str], ...]:
    """Return (file, reason) of every file that could not be used."""
    return tuple((name, reason) for name, reason in cache.meta["skipped"])


def unknown_classes(path: Path, found: Found) -> str:
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
        f"bad: repair or remove them, or raise data.max-bad\nin {path}:{_listed(skipped)}"
    )


def _listed(skipped: Sequence[tuple[str, str]]) -> str:
    lines = [f"\n  {name}: {reason}" for name, reason in skipped[:LISTED]]
    more = len(skipped) - len(lines)
    return "".join(lines) + (f"\n  and {more} more" if more else "")


def _nameable(name: str) -> bool:
    reserved = name.strip().casefold() in PARTS
    return bool(name) and not reserved and name[0] != "." and "/" not in name and name.isprintable()


def _every(channels: int, value: float | None) -> tuple[float, ...] | None:
    return None if value is None else (value,) * channels


def _build(files: Sequence[File], root: Path, options: FolderOptions, home: Path) -> None:
    """Decode all files into the cache folder `home`."""
    with quiet(), ThreadPoolExecutor(THREADS) as pool:
        skipped: list[tuple[str, str]] = []

        def usable(
            read: Callable[[Path], T], chosen: Sequence[File], width: int
        ) -> Iterator[tuple[File, T]]:
            step = max(1, BATCH_BYTES // width)
            for start in range(0, len(chosen), step):
                batch = chosen[start : start + step]
                for file, result in zip(
                    batch, pool.map(partial(_try, read, root), batch), strict=True
                ):
                    if isinstance(result, str):
                        skipped.append((shown(file.name), result))
                    else:
                        yield file, result

        headers = list(usable(read_header, files, width=HEADER_BYTES))
        target = _common_size([header for _, header in headers], options.size)
        grey = options.channels == 1
        if options.channels is None:
            grey = all(header.grey for _, header in headers)
        kept: list[File] = []

        shape = (1 if grey else 3, *target)

        def rows() -> Iterator[NDArray[np.uint8]]:
            read = partial(read_pixels, size=target, grey=grey)
            for file, pixels in usable(read, [file for file, _ in headers], prod(shape)):
                kept.append(file)
                yield pixels

        write_rows(home / "images.npy", shape, len(headers), rows())
    skipped.sort()
    if not kept:
        raise DataError(
            f"{len(files)} of {len(files)} files cannot be used, which leaves none: repair or "
            f"replace them\nin {root}:{_listed(skipped)}"
        )
    np.save(home / "labels.npy", np.array([file.label for file in kept], dtype=np.int64))
    train_size = sum(file.part == "train" for file in kept)
    images = np.load(home / "images.npy", mmap_mode="r")
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
    (home / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _try(read: Callable[[Path], T], root: Path, file: File) -> T | str:
    try:
        return read(root / file.name)
    except UnusablePictureError as reason:
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
