"""Folders of pictures, PATH/train/<class>/... and PATH/test/<class>/..., as a data set.

Decoded once into a memory-mapped cache, and again when a file, the size or the class list
changes. Files that cannot be used are listed with their reason and left out.
"""

import json
import logging
import os
import re
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

from common.data.cache import cached, digest, write_rows
from common.data.dataset import Dataset, pixel_statistics
from common.data.images import Header, Size, UnusablePictureError, quiet, read_header, read_pixels
from common.errors import DataError, did_you_mean

logger = logging.getLogger(__name__)

PARTS = ("train", "test")
MAX_SIDE = 64
THREADS = 4
HEADER_BYTES = 1 << 10
BATCH_BYTES = 1 << 26  # of decoded pictures that wait to be written
SUFFIXES = {f".{s}" for s in ("jpg", "jpeg", "png", "ppm", "bmp", "tif", "tiff", "webp", "gif")}
VERSION = 1  # part of the cache's key; raise it when the same files give other pixels

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
    """

    classes: tuple[str, ...] | None = None
    size: int | None = None
    channels: int | None = None
    max_bad: float = 0.05
    flip: bool = True

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise DataError(f"picture size is {self.size}, expected at least 1")
        if self.channels not in (None, 1, 3):
            raise DataError(f"channels is {self.channels}, expected 1 or 3")
        if not 0 <= self.max_bad <= 1:
            raise DataError(f"max_bad is {self.max_bad}, expected 0..1")
        if self.classes is not None and len(set(self.classes)) != len(self.classes):
            raise DataError(f"class list names a class twice: {', '.join(self.classes)}")


@dataclass(frozen=True)
class _File:
    name: str  # relative to the folder
    label: int
    part: str


def load_folder(path: Path, options: FolderOptions | None = None) -> Dataset:
    """Read PATH/train/<class>/* and PATH/test/<class>/* (which may be missing).

    Subfolders of a class belong to it. Hidden and empty folders, and hidden files without a
    picture's suffix, are ignored. Without options.classes the classes are the folders' names, "2"
    before "10".

    Raises:
        DataError: no such folder, no pictures, a class that the federation does not know, or too
            many unusable files.
    """
    options = options or FolderOptions()
    found = _scan(path)
    classes = options.classes or tuple(sorted({name for _, name in found}, key=_natural))
    _check_classes(path, {name for _, name in found}, classes)
    files = [
        _File(member, classes.index(name), part)
        for (part, name), members in sorted(
            found.items(), key=lambda item: (PARTS.index(item[0][0]), classes.index(item[0][1]))
        )
        for member in members
    ]
    cache = cached(
        path,
        digest([VERSION, options.size, options.channels, classes]),
        digest([_fingerprint(path, file.name) for file in files]),
        partial(_build, files, path, options),
    )
    skipped = tuple((name, reason) for name, reason in cache.meta["skipped"])
    _check_skipped(path, skipped, len(files), options.max_bad)
    if skipped:
        count, total = len(skipped), len(files)
        logger.warning("%d of %d files in %s are skipped:%s", count, total, path, _listed(skipped))
    return Dataset(
        name=f"folder:{path}",
        images=cache.images,
        labels=cache.labels,
        classes=classes,
        train_size=cache.meta["train_size"],
        mean=tuple(cache.meta["mean"]),
        std=tuple(cache.meta["std"]),
        flip=options.flip,
        skipped=skipped,
    )


def _scan(path: Path) -> dict[tuple[str, str], list[str]]:
    """Return the names, relative to `path`, of the files of each (part, class) that has any."""
    if not (path / "train").is_dir():
        raise DataError(
            f"{path / 'train'} is not a folder; expected pictures as "
            f"{path}/train/<class>/<file> and {path}/test/<class>/<file>"
        )
    found = {}
    for part in PARTS:
        for folder in _class_folders(path / part):
            if members := sorted(_members(folder, f"{part}/{folder.name}")):
                found[part, folder.name] = members
    if not found:
        raise DataError(f"no file in any class folder of {path / 'train'} or {path / 'test'}")
    return found


def _class_folders(part: Path) -> list[Path]:
    try:
        inside = list(part.iterdir()) if part.is_dir() else []
        return [folder for folder in inside if folder.is_dir() and folder.name[0] != "."]
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> DataError:
    return DataError(f"cannot list a folder of pictures: {error}; make it readable")


def _members(folder: Path, prefix: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise _unreadable(error) from error

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = prefix + where.removeprefix(str(folder))
        for name in names:
            if not name.startswith(".") or Path(name).suffix.lower() in SUFFIXES:
                yield f"{inside}/{name}"


def _check_classes(path: Path, names: set[str], classes: Sequence[str]) -> None:
    unknown = sorted(names - set(classes), key=_natural)
    if unknown:
        listed = ", ".join(f'"{name}"{did_you_mean(name, classes)}' for name in unknown)
        raise DataError(
            f"{path} has folders that are no class of the federation: {listed}; rename or move "
            f"them; the classes are: {', '.join(classes)}"
        )


def _check_skipped(
    path: Path, skipped: Sequence[tuple[str, str]], total: int, max_bad: float
) -> None:
    if len(skipped) == total:
        raise DataError(
            f"{total} of {total} files in {path} cannot be used, which leaves none: repair or "
            f"replace them{_listed(skipped)}"
        )
    if len(skipped) > max_bad * total:
        raise DataError(
            f"{len(skipped)} of {total} files in {path} cannot be used, at most {max_bad:.1%} of "
            f"them may be bad: repair or remove them, or raise max_bad{_listed(skipped)}"
        )


def _listed(skipped: Sequence[tuple[str, str]]) -> str:
    return "".join(f"\n  {name}: {reason}" for name, reason in skipped)


def _fingerprint(root: Path, name: str) -> list[str | int]:
    try:
        status = (root / name).stat()
    except OSError:
        return [name]
    return [name, status.st_size, status.st_mtime_ns, status.st_mode]


def _natural(name: str) -> tuple[list[str | int], str]:
    parts = re.split(r"(\d+)", name)  # text and digits take turns, text first
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def _build(files: Sequence[_File], root: Path, options: FolderOptions, home: Path) -> None:
    """Decode all files into the cache folder `home`."""
    with quiet(), ThreadPoolExecutor(THREADS) as pool:
        skipped: list[tuple[str, str]] = []

        def usable(
            read: Callable[[Path], T], chosen: Sequence[_File], width: int
        ) -> Iterator[tuple[_File, T]]:
            step = max(1, BATCH_BYTES // width)
            for start in range(0, len(chosen), step):
                batch = chosen[start : start + step]
                for file, result in zip(
                    batch, pool.map(partial(_try, read, root), batch), strict=True
                ):
                    if isinstance(result, str):
                        skipped.append((file.name, result))
                    else:
                        yield file, result

        headers = list(usable(read_header, files, width=HEADER_BYTES))
        target = _common_size([header for _, header in headers], options.size)
        grey = options.channels == 1
        if options.channels is None:
            grey = all(header.grey for _, header in headers)
        kept: list[_File] = []

        shape = (1 if grey else 3, *target)

        def rows() -> Iterator[NDArray[np.uint8]]:
            read = partial(read_pixels, size=target, grey=grey)
            for file, pixels in usable(read, [file for file, _ in headers], prod(shape)):
                kept.append(file)
                yield pixels

        write_rows(home / "images.npy", shape, len(headers), rows())
    _check_skipped(root, sorted(skipped), len(files), max_bad=1.0)
    np.save(home / "labels.npy", np.array([file.label for file in kept], dtype=np.int64))
    train_size = sum(file.part == "train" for file in kept)
    images = np.load(home / "images.npy", mmap_mode="r")
    mean, std = pixel_statistics(images[:train_size] if train_size else images)
    meta = {"train_size": train_size, "mean": mean, "std": std, "skipped": sorted(skipped)}
    (home / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _try(read: Callable[[Path], T], root: Path, file: _File) -> T | str:
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
