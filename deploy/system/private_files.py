"""Read and write files and folders that only their owner may read."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import DeployError
from common.io.files import atomic_write, lock, remove_partial_files, sync_to_disk

PRIVATE, PUBLIC = 0o600, 0o644


def make_folder(path: Path, mode: int = 0o700, *, close: bool = False) -> None:
    """Make a folder.

    Args:
        path: The folder. Missing parents are made with mode 0755.
        mode: Permission bits.
        close: Remove other permission bits from an existing folder.

    Raises:
        DeployError: The path is a link or a file, or this user may not write to the folder.
    """
    try:
        for parent in reversed([p for p in path.parents if not p.exists()]):
            parent.mkdir(0o755)
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) & 0o755)  # the umask may allow more
        try:
            path.mkdir(mode)
        except FileExistsError:
            existing = path.lstat()
            if not stat.S_ISDIR(existing.st_mode):
                message = f"{path} is {_kind(existing.st_mode)}, expected a folder"
                raise DeployError(message) from None
        status = path.stat()
        if close and os.geteuid() in (0, status.st_uid):
            path.chmod(stat.S_IMODE(status.st_mode) & mode | stat.S_IRWXU)
    except OSError as error:
        raise DeployError(f"the folder {path} cannot be made: {error.strerror}") from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise DeployError(
            f"uid {os.geteuid()} may not read, write and enter the folder {path}, which belongs to "
            f"uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}; run this as its "
            f"owner, or: chown {os.geteuid()} {path}"
        )


def read_file(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is no file.

    Raises:
        DeployError: The path is a link or not a file, or this user may not read it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        try:
            if stat.S_ISLNK(path.lstat().st_mode):
                raise DeployError(
                    f"{path} is a symbolic link; replace it by the file itself"
                ) from None
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

    The caller holds the folder's lock or is its only writer.

    Args:
        path: The file.
        data: The content.
        mode: Permission bits, see `common.io.files.atomic_write`.
        replace: Replace an existing file.

    Raises:
        DeployError: The file exists already or cannot be written.
    """
    if not replace and os.path.lexists(path):
        raise DeployError(f"{path} exists already; move it away first")
    try:
        remove_partial_files(path.parent, path.name)
        with atomic_write(path, mode=mode) as file:
            file.write(data)
        sync_to_disk(path.parent)
    except OSError as error:
        raise DeployError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. Wait while another process holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "a special file")
