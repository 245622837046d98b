"""Downloads that many processes may ask for at once, that end in time, and that are checked."""

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
BLOCK = 1 << 20


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name on disk, its address, its MD5 sum as its publisher gives it."""

    name: str
    url: str
    md5: str


def fetch(files: Sequence[RemoteFile], folder: Path, seconds: float = 10.0) -> None:
    """Download those of `files` that are missing in `folder`.

    One process downloads; others that ask meanwhile wait and share its success or its failure.
    A file has its final name only when it is complete and its sum is right. Certificates are
    checked as the system says. torchvision's own downloader is not used: it knows no timeout and
    falls back from https to http.

    Args:
        files: what is wanted.
        folder: where it goes; made if need be.
        seconds: patience for a silent connection; without a network the error comes within twice
            that.

    Raises:
        DataError: a file cannot be had or is not what was published; says what to put where.
    """
    asked = time.time()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / LOCK) as note:
            missing = [file for file in files if not (folder / file.name).exists()]
            if missing:
                _raise_recent_failure(note, asked)
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
    """Say by hand what `fetch` would do."""
    names = " and ".join(f"{file.name} (from {file.url})" for file in files)
    return f"put {names} into {folder.absolute()}"


def md5_of(path: Path) -> str:
    """Return the MD5 sum of a file: a guard against damage, as publishers give no better one."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, _md5).hexdigest()


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _raise_recent_failure(note: IO[str], asked: float) -> None:
    note.seek(0)
    when, _, reason = note.read().partition("\n")
    if when and float(when) >= asked:  # it failed while this process waited for the lock
        raise DataError(reason)


def _download(file: RemoteFile, folder: Path, seconds: float) -> None:
    from http.client import HTTPException

    part = folder / f".{file.name}.part"  # one name is enough: the lock is held
    digest = _md5()
    try:
        with _open(file.url, seconds) as response, part.open("wb") as target:
            while block := response.read(BLOCK):
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
    """Open a URL within 2 * seconds; in a thread, as a dead name server heeds no timeout."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            request = Request(url, headers={"User-Agent": "fedkeel"})
            answers.put(urlopen(request, timeout=seconds))
        except HTTPError as error:
            error.close()  # it is an open response as well
            answers.put(error)
        except Exception as error:  # handed over to the thread that waits
            answers.put(error)

    threading.Thread(target=attempt, daemon=True).start()
    try:
        answer = answers.get(timeout=2 * seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer in {2 * seconds:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
