"""Download files once for many processes, with a timeout, a size limit and a checksum."""

import hashlib
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from common.errors import DataError
from common.io.files import file_lock

LOCK = ".fedkeel-download.lock"
BLOCK = 1 << 20  # bytes read at a time
MAX_BYTES = 1 << 29  # of a file; the largest known one has 170 MB


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name on disk, its URL, and its MD5 sum as published."""

    name: str
    url: str
    md5: str


def fetch(files: Sequence[RemoteFile], folder: Path, seconds: float = 10.0) -> None:
    """Download the files that are missing in `folder`.

    One process downloads while others wait and share its success or failure. A file gets its final
    name when it is complete and its checksum is correct. torchvision's downloader is not used: it
    has no timeout, writes to the final name, and falls back from https to http.

    Args:
        files: the files.
        folder: the folder, created if necessary.
        seconds: timeout of a silent connection. Without a network the error comes within twice
            this time.

    Raises:
        DataError: a file cannot be downloaded or has a wrong checksum. The message says which file
            to put where.
    """
    started = time.time()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / LOCK) as note:
            missing = [file for file in files if not (folder / file.name).exists()]
            if missing:
                _raise_recent_failure(note, started)
            for file in missing:
                try:
                    _download(file, folder, seconds)
                except DataError as error:
                    note.truncate(0)
                    note.write(f"{time.time()}\n{error}")
                    raise
    except OSError as error:
        raise DataError(
            f"cannot write to {folder}: {error}; {where_to_put(files, folder)}"
        ) from error


def where_to_put(files: Sequence[RemoteFile], folder: Path) -> str:
    """Return the instruction to download the files by hand."""
    names = " and ".join(f"{file.name} (from {file.url})" for file in files)
    return f"put {names} into {folder.absolute()}"


def md5_of(path: Path) -> str:
    """Return the MD5 sum of a file. It detects damage. The publishers give no better checksum."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, _md5).hexdigest()


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _raise_recent_failure(note: IO[str], started: float) -> None:
    note.seek(0)
    when, _, reason = note.read().partition("\n")
    if when and float(when) >= started:  # another process failed while this one waited
        raise DataError(reason)


def _download(file: RemoteFile, folder: Path, seconds: float) -> None:
    from http.client import HTTPException

    part = folder / f".{file.name}.part"  # the lock makes the name unique
    digest = _md5()
    try:
        with _open(file.url, seconds) as response, part.open("wb") as target:
            while block := response.read(BLOCK):
                if target.tell() + len(block) > MAX_BYTES:
                    raise OSError(f"more than {MAX_BYTES / 1e6:.0f} MB")
                digest.update(block)
                target.write(block)
        if digest.hexdigest() != file.md5:
            raise DataError(
                f"{file.url} gave {part.stat().st_size} bytes with MD5 {digest.hexdigest()}, "
                f"expected {file.md5}: try again, or {where_to_put([file], folder)}"
            )
        part.replace(folder / file.name)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"cannot download {file.url} ({error}); without a network, "
            f"{where_to_put([file], folder)}"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _open(url: str, seconds: float) -> Any:
    """Open a URL within 2 * seconds, in a thread, because name lookups have no timeout."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            request = Request(url, headers={"User-Agent": "fedkeel"})
            answers.put(urlopen(request, timeout=seconds))
        except HTTPError as error:
            error.close()  # an HTTPError is also an open response
            answers.put(error)
        except Exception as error:  # raised again in the waiting thread
            answers.put(error)

    threading.Thread(target=attempt, daemon=True).start()
    try:
        answer = answers.get(timeout=2 * seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer in {2 * seconds:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
