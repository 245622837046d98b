"""The page follows the runs, on this machine alone, and never shows less than it has."""

import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from common.config import parse
from common.errors import ConfigError
from common.runs.live_state import LiveState
from common.runs.records import CONFIG_FILE, RECORDS, Recorder, RoundRecord
from deploy.report.live_server import RunWatcher, serving
from deploy.report.run_data import RunData
from server_app.run_dir.run_dir import RunDir


def render(runs: Sequence[RunData], left_out: Mapping[str, str]) -> str:
    shown = [f"{run.label} {run.rounds}" for run in runs]
    return "; ".join([*shown, *(f"not {Path(name).name}" for name in left_out)]) or "nothing yet"


def watching(*places: Path) -> RunWatcher:
    """A watcher that has had its first look."""
    watcher = RunWatcher(places, render)
    watcher.look()
    return watcher


def begin(place: Path, name: str = "a") -> RunDir:
    folder = RunDir.open(parse({"out": str(place), "name": name}))
    note(folder, 1)
    return folder


def note(folder: RunDir, number: int) -> None:
    Recorder(folder.path / RECORDS).append(RoundRecord(number, 0.1, [], []))


def ask(url: str, host: str = "") -> str:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        return str(answer.read().decode())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    with serving(RunWatcher([tmp_path], render), 0) as url:
        yield url, tmp_path


def test_a_place_without_runs_is_shown_until_there_are_some(tmp_path: Path) -> None:
    watcher = RunWatcher([tmp_path / "later"], render)
    assert not watcher.shown.version
    watcher.look()
    assert watcher.shown.html == "nothing yet"
    begin(tmp_path / "later")
    assert watcher.look()
    assert watcher.shown.html == "a 1"


def test_the_page_is_drawn_again_only_when_something_happened(tmp_path: Path) -> None:
    folder = begin(tmp_path)
    watcher = watching(tmp_path)
    before = watcher.shown
    assert not watcher.look()
    note(folder, 2)
    assert watcher.look()
    assert watcher.shown.html == "a 2"
    assert watcher.shown.version != before.version
    begin(tmp_path, "b")
    assert watcher.look()
    assert watcher.shown.html == "a 2; b 1"


def test_records_that_cannot_be_read_are_named_and_the_others_shown(tmp_path: Path) -> None:
    begin(tmp_path, "b")
    folder = begin(tmp_path)
    watcher = watching(tmp_path)
    (folder.path / RECORDS).write_text("no record\n")
    watcher.look()
    assert watcher.shown.html == "b 1; not a"


def test_a_place_without_runs_hides_nobody_elses(tmp_path: Path) -> None:
    begin(tmp_path / "a")
    (tmp_path / "b").mkdir()
    watcher = watching(tmp_path / "b", tmp_path / "a", tmp_path / "a" / "a")
    assert watcher.shown.html == "a 1"


def test_a_run_without_its_config_is_followed_too(tmp_path: Path) -> None:
    folder = begin(tmp_path)
    (folder.path / CONFIG_FILE).unlink()
    watcher = watching(tmp_path)
    note(folder, 2)
    assert watcher.look()
    assert watcher.shown.html == "a 2"


def test_folders_that_come_and_go_under_it_do_not_end_it(tmp_path: Path) -> None:
    for number in range(5):
        begin(tmp_path, f"stays{number}")
    over = threading.Event()

    def churn() -> None:
        number = 0
        while not over.is_set():
            number += 1
            begin(tmp_path, f"goes{number}")
            shutil.rmtree(tmp_path / f"goes{number}")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        watcher = RunWatcher([tmp_path], render)
        for _ in range(150):
            watcher.look()
            watcher.now()
    finally:
        over.set()
        thread.join()
    watcher.look()
    assert watcher.shown.html == "; ".join(f"stays{number} 1" for number in range(5))


def test_event_files_follow_under_the_names_of_the_folders(tmp_path: Path) -> None:
    class Events:
        told: ClassVar[list[list[str]]] = []

        def write(self, runs: Sequence[RunData], names: Sequence[str]) -> None:
            self.told.append(
                [f"{name} {run.rounds}" for run, name in zip(runs, names, strict=True)]
            )

    folder = begin(tmp_path / "sweep")
    watcher = RunWatcher([tmp_path], render, Events())  # type: ignore[arg-type]
    watcher.look()
    note(folder, 2)
    watcher.look()
    assert Events.told == [["sweep/a 1"], ["sweep/a 2"]]


def test_the_browser_gets_the_page_and_what_goes_on(served: tuple[str, Path]) -> None:
    url, place = served
    assert ask(url) == "nothing yet"
    first = json.loads(ask(url + "state"))
    assert first["now"] == []
    folder = begin(place)
    folder.show_live(
        LiveState("training", 2, 30, time.time(), asked=["0", "1"], answered={"0": 0.5})
    )
    deadline = time.monotonic() + 20
    while ask(url) == "nothing yet" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ask(url) == "a 1"
    state = json.loads(ask(url + "state"))
    assert state["version"] != first["version"]
    assert state["now"] == ["a: round 2 of 30: training, 1 of 2 replies, waiting for 1"]


def test_only_this_machine_under_its_own_name_is_answered(served: tuple[str, Path]) -> None:
    url, _ = served
    assert url.startswith("http://127.0.0.1:")
    port = url.rstrip("/").rpartition(":")[2]
    assert ask(url, f"localhost:{port}") == "nothing yet"
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(url, host)


def test_nothing_else_is_served(served: tuple[str, Path]) -> None:
    url, place = served
    begin(place)
    for path in ("a/records.jsonl", "../etc/passwd", "state/", "?x"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(url + path)


def test_a_port_that_is_taken_is_told(served: tuple[str, Path]) -> None:
    url, place = served
    port = int(url.rstrip("/").rpartition(":")[2])
    with (
        pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be had"),
        serving(RunWatcher([place], render), port),
    ):
        pass


def test_an_error_in_drawing_ends_the_watch_instead_of_hiding(tmp_path: Path) -> None:
    calls = []

    def fragile(runs: Sequence[RunData], left_out: Mapping[str, str]) -> str:
        calls.append(len(runs))
        if runs:
            raise ValueError("cannot draw this")
        return "empty"

    watcher = RunWatcher([tmp_path], fragile)
    with serving(watcher, 0):
        begin(tmp_path)
        deadline = time.monotonic() + 20
        while not watcher.error and time.monotonic() < deadline:
            time.sleep(0.05)
    assert str(watcher.error) == "cannot draw this"
    assert calls == [0, 1] or calls == [0, 0, 1]
