"""Decoded pictures on disk, built once and then memory-mapped by every process.

A cache is a folder with images.npy (uint8 [n, c, h, w]), labels.npy (int64 [n]) and meta.json. It
is written under another name and renamed when complete, so whoever sees it sees all of it.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from common.data.locks import exclusive
from common.errors import DataError

META = "meta.json"
HOME = ".fedkeel-cache"


@dataclass(frozen=True, eq=False)
class Cached:
    """What a cache holds; `images` is a read-only memory map."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    meta: dict[str, Any]


def cached(source: Path, options: str, content: str, build: Callable[[Path], None]) -> Cached:
    """Return the cache of `source` for these options and this content, building it if need be.

    It lives in source/.fedkeel-cache where that can be written, else in a private folder below the
    system's temporary directory. One process builds under a lock, others wait for it. A cache of
    the same options with other content is outdated and removed.

    Args:
        source: the folder that the pictures come from.
        options: digest of what was asked for.
        content: digest of what is there.
        build: fills the empty folder that it is given.
    """
    name = f"{options}-{content}"
    homes = (source / HOME, _private(source))
    for home in homes:
        if (home / name / META).is_file():
            return _opened(home / name)
    writable = [home for home in homes if _writable(home)]
    if not writable:
        raise DataError(f"cannot write a cache of decoded pictures to {homes[0]} or {homes[1]}")
    home = writable[0]
    with exclusive(home / ".lock"):
        if not (home / name / META).is_file():
            _build(home, name, options, build)
    return _opened(home / name)


def write_rows(
    path: Path, shape: tuple[int, ...], most: int, rows: Iterable[NDArray[np.uint8]]
) -> int:
    """Write uint8 rows of `shape`, `most` at most, one by one as one array; return how many.

    The header comes first and is written again when the number is known: NumPy pads it such that
    the first axis may change without moving the data.
    """

    def header(count: int) -> dict[str, Any]:
        return {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}

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
    """Return a short fingerprint of a value that JSON can hold."""
    return blake2b(json.dumps(value).encode(), digest_size=10).hexdigest()


def _build(home: Path, name: str, options: str, build: Callable[[Path], None]) -> None:
    part = home / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)  # of a builder that was killed
    try:
        part.mkdir()
        build(part)
        part.rename(home / name)
    except OSError as error:
        raise DataError(f"cannot write a cache of decoded pictures to {home}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for outdated in home.glob(f"{options}-*"):
        if outdated.name != name:
            shutil.rmtree(outdated, ignore_errors=True)


def _opened(folder: Path) -> Cached:
    try:
        return Cached(
            images=np.load(folder / "images.npy", mmap_mode="r"),
            labels=np.load(folder / "labels.npy"),
            meta=json.loads((folder / META).read_text(encoding="utf-8")),
        )
    except (OSError, ValueError) as error:
        raise DataError(f"the cache {folder} is damaged ({error}): delete it") from error


def _private(source: Path) -> Path:
    """The user's own folder in the shared temporary directory, one for each absolute path."""
    user = os.getuid()
    own = Path(tempfile.gettempdir()) / f"fedkeel-{user}"
    if own.exists() and own.stat().st_uid != user:
        raise DataError(f"{own} belongs to somebody else, its caches are not trusted: remove it")
    return own / digest(str(source.resolve()))


def _writable(home: Path) -> bool:
    try:
        home.parent.mkdir(mode=0o700, exist_ok=True)
        home.mkdir(exist_ok=True)
        (home / ".lock").touch()
    except OSError:
        return False
    return True
