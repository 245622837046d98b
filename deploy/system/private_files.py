"""Files and folders that only their owner may read."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import DeployError
from common.io.files import atomic_write, lock, remove_partial_files, sync_to_disk

PRIVATE, PUBLIC = 0o600, 0o644


def make_folder(path: Path, mode: int = 0o700, *, close: bool = False) -> None:
    """Make a folder; with `close`, one that is there and is wider gets this mode too.

    Raises:
        DeployError: it is a link or a file, or this user may not write in it.
    """
    try:
        for parent in reversed([p for p in path.parents if not p.exists()]):
            parent.mkdir(0o755)
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) & 0o755)  # whatever the umask allows
        try:
            path.mkdir(mode)
        except FileExistsError:
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode):
                raise DeployError(f"{path} is {_kind(found.st_mode)}, expected a folder") from None
        has = path.stat()
        if close and os.geteuid() in (0, has.st_uid):
            path.chmod(stat.S_IMODE(has.st_mode) & mode | stat.S_IRWXU)
    except OSError as error:
        raise DeployError(f"the folder {path} cannot be made: {error.strerror}") from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise DeployError(
            f"the folder {path} is closed to this user: it belongs to uid {has.st_uid} with mode "
            f"{stat.S_IMODE(has.st_mode):04o}, and uid {os.geteuid()} needs to read, write and "
            f"enter it; run this as its owner, or: chown {os.geteuid()} {path}"
        )


def read_file(path: Path) -> bytes | None:
    """Return what a file holds, None where there is none.

    Raises:
        DeployError: it is a link or no file, or this user may not read it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        try:
            if stat.S_ISLNK(path.lstat().st_mode):
                raise DeployError(f"{path} is a symbolic link; put the file itself there") from None
            owner = f" (it belongs to uid {path.lstat().st_uid}; this is uid {os.geteuid()})"
        except OSError:
            owner = f" (this is uid {os.geteuid()})"
        raise DeployError(f"{path} cannot be read: {error.strerror}{owner}") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise DeployError(f"{path} is {_kind(mode)}, expected a file")
    with os.fdopen(handle, "rb") as file:
        return file.read()


def write_file(path: Path, data: bytes, mode: int, *, replace: bool = False) -> None:
    """Write a file atomically with these permission bits.

    The caller holds the folder's lock, or is its only writer.

    Args:
        path: the file.
        data: its content.
        mode: its permission bits, see `common.io.files.atomic_write`.
        replace: whether to replace a file of this name.

    Raises:
        DeployError: a file of that name exists, or it cannot be written.
    """
    if not replace and os.path.lexists(path):
        raise DeployError(f"{path} exists already and is not overwritten")
    try:
        remove_partial_files(path.parent, path.name)
        with atomic_write(path, mode=mode) as file:
            file.write(data)
        sync_to_disk(path.parent)
    except OSError as error:
        raise DeployError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; wait while another process has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "a special file")
