"""Atomic writes and file locks."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def lock(handle: int, *, wait: bool) -> bool:
    """Lock an open file or folder; return False if another holder has it.

    The kernel frees the lock when the handle is closed or the process dies, even by SIGKILL. The
    library filelock would not do: it opens the path for writing, which fails on a folder, and it
    truncates the file, which may be a private key.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def file_lock(path: Path, taken: Exception | None = None) -> Iterator[IO[str]]:
    """Hold the lock file at `path`, and yield it opened.

    The file stays: if it were removed, two processes could hold two files of the same name.

    Args:
        path: the file; it is created if it does not exist.
        taken: raised if another holder has the lock; None waits for it.
    """
    with path.open("a+", encoding="utf-8") as file:
        if not lock(file.fileno(), wait=taken is None):
            assert taken is not None
            raise taken
        yield file


def sync_to_disk(path: Path) -> None:
    """Write a file's content, or a folder's list of names, to the disk.

    Without it a power failure may leave a name without its content.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_write(
    path: Path, *, durable: bool = True, mode: int | None = None
) -> Iterator[IO[bytes]]:
    """Yield a file that replaces `path` at the end of the block.

    It is written under a hidden name in the same folder, and renamed. If the block fails, `path`
    stays as it was. A killed process leaves a file `.NAME.*.partial`.

    Args:
        path: the final name.
        durable: whether to wait for the disk; otherwise a power failure may lose the file.
        mode: permission bits, whatever the umask. The file is private until they are set, and if
            root writes it, it gets the owner of its folder. None takes the umask's bits.

    Raises:
        OSError: the disk refuses it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    first_mode = 0o666 if mode is None else 0o600
    try:
        with open(
            partial, "xb", opener=lambda name, flags: os.open(name, flags, first_mode)
        ) as file:
            if mode is not None:
                _set_owner_and_mode(file.fileno(), path.parent, mode)
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def private_files(*, group: bool = False) -> Iterator[None]:
    """Let other users of this machine read nothing that this process makes during the block.

    Args:
        group: let the group read it.
    """
    before = os.umask(0o027 if group else 0o077)
    try:
        yield
    finally:
        os.umask(before)


def remove_partial_files(folder: Path, name: str = "*") -> None:
    """Remove what killed writers of a file left behind; only for the holder of a lock on it."""
    for partial in folder.glob(f".{name}.*.partial"):
        partial.unlink(missing_ok=True)


def _set_owner_and_mode(handle: int, folder: Path, mode: int) -> None:
    if os.geteuid() == 0:  # such as a server's key, which the server's user must read
        owner = folder.stat()
        os.fchown(handle, owner.st_uid, owner.st_gid)
    os.fchmod(handle, mode)
