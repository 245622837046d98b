"""fedkeel status: what a person reads, whatever the files hold."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.errors import ConfigError
from deploy.status import find, headline, show
from server_app.live import LIVE, Live, LiveFile, clear_live, read_live
from server_app.records import RECORDS, Outcome, Recorder, RoundRecord, write_outcome

NOW = 1000.0


def live(**changes: Any) -> Live:
    facts = {"phase": "training", "round": 3, "rounds": 9, "since": NOW, "updated": NOW}
    return Live(**{**facts, **changes})


def told(out: Path, name: str = "") -> str:
    console = Console(file=io.StringIO(), width=200)
    show(console, out, name, follow=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_it_names_whom_it_waits_for() -> None:
    scene = live(asked=["a", "b", "c"], answered={"a": 1.0}, missing={"c": "gone"}, deadline=1060)
    line = headline(scene, None, NOW)
    assert line == "round 3 of 9: training, 1 of 3 replies, waiting for b, 60 s left"


def test_a_run_that_gives_no_sign_is_told_with_the_way_out() -> None:
    line = headline(live(), None, NOW + 60, "first")
    assert "NO SIGN OF LIFE for 60 s" in line
    assert "fedkeel run --resume --name first" in line
    assert "NO SIGN" not in headline(live(), None, NOW + 5)
    ended = Outcome("completed", "9 rounds", 9, 1.0)
    assert headline(live(), ended, NOW + 60) == "completed after 9 rounds: 9 rounds"


def test_each_client_has_its_line_with_bytes_seconds_and_reasons(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    record = RoundRecord(
        1, 0.1, ["a", "b"], ["a"], {"b": "it went offline"}, arrived={"a": 2.5},
        bytes_down={"a": 2_000_000}, bytes_up={"a": 1_000_000},
    )  # fmt: skip
    Recorder(folder / RECORDS).append(record)
    LiveFile(folder).show(live(ready=["a"], asked=["a"], refused={"z": "no picture"}))
    rows = {line.split()[0]: line for line in told(tmp_path).splitlines() if line.strip()}
    assert "at work" in rows["a"]
    assert "2.5" in rows["a"]
    assert "2.00" in rows["a"]
    assert "offline" in rows["b"]
    assert "it went offline" in rows["b"]
    assert "no picture" in rows["z"]


def test_terminal_codes_of_strangers_are_not_passed_on(tmp_path: Path) -> None:
    evil = "x\x1b[2J\x1b]0;pwn\x07\nfake line"
    folder = tmp_path / "first"
    LiveFile(folder).show(live(phase=evil, ready=[evil], refused={evil: evil}, asked=[evil]))
    text = told(tmp_path)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert not any(line.startswith("fake") for line in text.splitlines())


@pytest.mark.parametrize(
    "said",
    ["", "[]", '{"phase": 5}', '{"phase":"t","round":"x","rounds":1,"since":0}',
     '{"phase":"t","round":1,"rounds":1,"since":0,"asked":3}'],
)  # fmt: skip
def test_a_damaged_live_file_is_as_none(tmp_path: Path, said: str) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / LIVE).write_text(said)
    assert read_live(tmp_path / "first") is None
    assert "not begun" in told(tmp_path, "first")


def test_a_live_file_is_read_as_it_was_written_and_can_be_forgotten(tmp_path: Path) -> None:
    scene = live(asked=["a"], answered={"a": 1.5}, late={"b": "its reply came"})
    LiveFile(tmp_path).show(scene)
    found = read_live(tmp_path)
    assert found is not None
    assert found.updated > NOW
    assert json.loads((tmp_path / LIVE).read_text())["answered"] == {"a": 1.5}
    assert found.awaited == []
    clear_live(tmp_path)
    assert read_live(tmp_path) is None


def test_without_a_name_the_newest_run_is_meant_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        write_outcome(tmp_path / name, Outcome("completed", "", 1, 1.0))
    assert find(tmp_path, "").name == "new"
    with pytest.raises(ConfigError, match=r'no run "nwe" in .*; there are: new, old'):
        find(tmp_path, "nwe")
    with pytest.raises(ConfigError, match="there are: none"):
        find(tmp_path / "nowhere", "")
