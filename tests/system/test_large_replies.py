"""Replies that are far too large, on real nodes: they concern their sender only."""

import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.system.federation import wait_for
from tests.system.fleet import PATIENCE, Fleet, fleet, need_nginx
from tests.system.odd import Odd

pytestmark = pytest.mark.slow
ROOM = 250  # MB, for the ServerApp's ordinary work


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Start a federation of two clients, of which client 1 behaves oddly."""
    need_nginx()
    with fleet(tmp_path_factory.mktemp("large") / "f", size=2) as up:
        up.enroll("0", "1")
        odd = Odd(up.folder / "odd")
        up.join("0", "1", extra=odd.env(quick=True))
        odd.give({"1": ["", "large", "long", ""]})
        yield up


def database_megabytes(made: Fleet) -> float:
    """Return the size of the SuperLink's database on disk, with its write-ahead log."""
    return sum(path.stat().st_size for path in (made.folder / "state").glob("state.db*")) / 1e6


def test_a_reply_of_300_mb_and_a_text_of_50_mb_drop_only_their_sender(made: Fleet) -> None:
    process = made.start_run("fedavg", "large", {"rounds": 4, "server.round-timeout": 90.0})
    made.done("large", 1)
    server, over = made.find("flwr-serverapp"), threading.Event()
    before, peak = server.memory_info().rss, [0]

    def watch() -> None:
        while not over.wait(0.05):
            try:
                peak[0] = max(peak[0], server.memory_info().rss)
            except psutil.Error:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert process.ended(PATIENCE) == 0, process.text
    finally:
        over.set()
        watcher.join()
    records = {record.round: record for record in made.records("large")}
    assert records[1].replied == records[4].replied == ["0", "1"]
    assert records[2].replied == records[3].replied == ["0"]
    assert "its reply is too large: " in records[2].dropped["1"]
    assert "its reply is too large: more than 1." in records[3].dropped["1"]
    assert (peak[0] - before) / 1e6 < ROOM
    wait_for(lambda: database_megabytes(made) < 120, lambda: str(database_megabytes(made)))
