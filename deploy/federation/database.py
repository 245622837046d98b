"""The SuperLink's database: Flower makes and uses it, and it gives back deleted messages' space."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from deploy.system.private_files import PRIVATE

LARGEST_LOG = 32 << 20  # bytes of the write-ahead log, before it is written into the database
BUSY_SECONDS = 0.2


def prepare_database(path: Path) -> None:
    """Make an empty database that shrinks when messages are deleted, unless there is one.

    SQLite decides this when the first table is made. Without it the file keeps its largest size.
    """
    if path.exists():
        return
    path.touch(PRIVATE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA auto_vacuum = FULL")
        connection.execute("VACUUM")  # writes the setting into the file


def shorten_log(path: Path) -> None:
    """Write a large write-ahead log into the database and empty it, if no one uses it right now.

    SQLite writes it regularly, but the file keeps its largest size while the SuperLink runs.
    """
    log = path.with_name(f"{path.name}-wal")
    with suppress(OSError, sqlite3.Error):
        if log.stat().st_size > LARGEST_LOG:
            with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
