"""Files written whole or not at all, locks that die with their holder, names that outlive a cut."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def file_lock(path: Path, taken: Exception | None = None) -> Iterator[IO[str]]:
    """Hold the lock file at `path`; yields the open file.

    The kernel lets go when the process ends, however it ends, so no stale lock is left. The file
    itself stays: to remove it would let two processes hold two different files of one name.

    Args:
        path: the file; it is made where there is none.
        taken: raised when somebody else holds the lock; None waits for its holder to finish.
    """
    with path.open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if taken else 0))
        except BlockingIOError:
            assert taken is not None, "without it the lock is waited for"
            raise taken from None
        yield handle


def sync_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are stored.

    Else a power cut may leave a name without its content.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of `path` at the end of the block, once it is on disk.

    Without `durable` it may be lost when the machine loses power.

    It is written beside its final name and renamed. A block that fails leaves `path` as it was; a
    process that is killed leaves a hidden partial file besides.

    Raises:
        OSError: the disk refuses it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
