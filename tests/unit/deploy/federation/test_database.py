"""The SuperLink's database gives back the space of deleted messages."""

import sqlite3
from contextlib import closing
from pathlib import Path

from deploy.federation.database import LARGEST_LOG, prepare_database, shorten_log

SIZE = 2 * LARGEST_LOG


def megabytes(path: Path) -> float:
    return sum(part.stat().st_size for part in path.parent.glob("state.db*")) / 1e6


def test_a_prepared_database_shrinks_when_a_large_message_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    prepare_database(path)
    assert path.stat().st_mode & 0o077 == 0
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE messages (content BLOB)")
        connection.execute("INSERT INTO messages VALUES (zeroblob(?))", (SIZE,))
        connection.commit()
        assert megabytes(path) > SIZE / 1e6
        connection.execute("DELETE FROM messages")
        connection.commit()
        shorten_log(path)
        assert megabytes(path) < 1
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)


def test_a_database_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"that of a running SuperLink")
    prepare_database(path)
    assert path.read_bytes() == b"that of a running SuperLink"


def test_a_log_in_use_stays_and_nothing_fails(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    shorten_log(path)
    prepare_database(path)
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE messages (content BLOB)")
        writer.execute("INSERT INTO messages VALUES (zeroblob(?))", (SIZE,))
        writer.commit()
        writer.execute("BEGIN IMMEDIATE")
        shorten_log(path)
        writer.commit()
        assert writer.execute("SELECT length(content) FROM messages").fetchone() == (SIZE,)
