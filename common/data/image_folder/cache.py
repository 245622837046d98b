"""A cache of decoded images on disk, built once and memory-mapped by every process.

A cache is a folder with images.npy (uint8 [n, c, h, w]), labels.npy (int64 [n]) and meta.json. It
is written under another name and renamed when it is complete.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from errno import ENOSPC
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from common.errors import DataError
from common.io.files import file_lock, sync_to_disk

META = "meta.json"
HOME = ".fedkeel-cache"


@dataclass(frozen=True, eq=False)
class ImageCache:
    """The contents of a cache. `images` is a read-only memory map."""

    folder: Path
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    meta: dict[str, Any]


def open_or_build(
    source: Path, options: str, content: str, build: Callable[[Path], None]
) -> ImageCache:
    """Return the cache of `source` for these options and this content, built now if necessary.

    The cache is in source/.fedkeel-cache if that is writable, otherwise in a private folder below
    the system's temporary directory. One process builds it under a lock while others wait. A cache
    with the same options and other content is outdated and deleted. A damaged one is rebuilt.

    Args:
        source: the folder of images.
        options: digest of the options.
        content: digest of the files.
        build: writes the cache into the empty folder that is its argument.

    Raises:
        DataError: neither place is writable or has room. The message says what to do.
    """
    name = f"{options}-{content}"
    homes, refusals = [source / HOME], []
    try:
        homes.append(_private(source))
    except OSError as error:
        refusals.append(f"\n  {error}")
    for home in homes:
        if cache := _opened(home / name):
            return cache
    for home in homes:
        try:
            home.parent.mkdir(mode=0o700, exist_ok=True)
            home.mkdir(exist_ok=True)
            with file_lock(home / ".lock"):
                if not _opened(home / name):  # may have been built while this process waited
                    _build(home, name, options, build)
            if cache := _opened(home / name):
                return cache
            refusals.append(f"\n  {home}: the written cache cannot be read")
        except OSError as error:
            refusals.append(f"\n  {home}: {error.strerror or error}")
    raise DataError(
        "there is no place for the decoded images: make room in one of these folders, or set the "
        f"environment variable TMPDIR to a folder with room{''.join(refusals)}"
    )


def write_rows(
    path: Path, shape: tuple[int, ...], most: int, rows: Iterable[NDArray[np.uint8]]
) -> int:
    """Write uint8 rows one by one as one .npy array; return their number.

    The header is written twice, because the number is known only at the end. NumPy pads it, so the
    data keep their position.

    Args:
        path: the file.
        shape: shape of a row.
        most: largest number of rows.
        rows: the rows. The free space is checked before the first is taken.

    Raises:
        OSError: the disk has no room for `most` rows, or the file cannot be written.
    """

    def header(count: int) -> dict[str, Any]:
        return {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}

    needed, free = most * prod(shape), shutil.disk_usage(path.parent).free
    if needed > free:
        text = f"{os.strerror(ENOSPC)}: {needed / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free"
        raise OSError(ENOSPC, text)
    count = 0
    with path.open("wb") as handle:
        npy.write_array_header_1_0(handle, header(most))
        start = handle.tell()
        for row in rows:
            assert row.size == prod(shape)
            handle.write(np.ascontiguousarray(row).data)
            count += 1
        handle.seek(0)
        npy.write_array_header_1_0(handle, header(count))
        assert handle.tell() == start
    return count


def digest(value: Any) -> str:
    """Return a short fingerprint of a JSON value."""
    return blake2b(json.dumps(value).encode(), digest_size=10).hexdigest()


def _build(home: Path, name: str, options: str, build: Callable[[Path], None]) -> None:
    for outdated in home.glob(f"{options}-*"):  # also leftovers of a killed process
        shutil.rmtree(outdated, ignore_errors=True)
    part = home / f"{name}.part"
    try:
        part.mkdir()
        build(part)
        for path in (*part.iterdir(), part):
            sync_to_disk(path)
        part.rename(home / name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _opened(folder: Path) -> ImageCache | None:
    """Return the cache in this folder; None if it is missing or damaged."""
    try:
        cache = ImageCache(
            folder=folder,
            images=np.load(folder / "images.npy", mmap_mode="r"),
            labels=np.load(folder / "labels.npy"),
            meta=json.loads((folder / META).read_text(encoding="utf-8")),
        )
    except (OSError, ValueError, EOFError):
        return None
    return cache if len(cache.images) == len(cache.labels) else None


def _private(source: Path) -> Path:
    """Return the user's folder for `source` in the shared temporary directory."""
    user = os.getuid()
    own = Path(tempfile.gettempdir()) / f"fedkeel-{user}"
    if own.exists() and own.lstat().st_uid != user:
        raise PermissionError(f"{own} belongs to another user and is not trusted: remove it")
    return own / digest(str(source.resolve()))
