"""One process at a time: a lock that dies with its holder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def exclusive(path: Path) -> Iterator[IO[str]]:
    """Hold the lock file at `path`, waiting for its holder to finish; yields the open file.

    The kernel lets go when the process ends, however it ends, so no stale lock is left. The file
    itself stays: to remove it would let two processes hold two different files of one name.
    """
    with path.open("a+", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
