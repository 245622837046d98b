"""fedkeel status: what a person reads, whatever the files hold."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.errors import ConfigError
from common.runs.live_state import LIVE, LiveState, LiveStateFile, clear_live_state, read_live_state
from common.runs.outcome import Outcome, write_outcome
from common.runs.records import RECORDS, Recorder, RoundRecord
from deploy.federation.participation import FEW_CLIENTS
from deploy.federation.status import find_run, headline, print_status

NOW = 1000.0


def live(**changes: Any) -> LiveState:
    facts = {"phase": "training", "round": 3, "rounds": 9, "since": NOW, "updated": NOW}
    return LiveState(**{**facts, **changes})


def told(out: Path, name: str = "", *, every_client: bool = False) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_status(console, out, name, follow=False, every_client=every_client)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_it_names_whom_it_waits_for() -> None:
    scene = live(asked=["a", "b", "c"], answered={"a": 1.0}, missing={"c": "gone"}, deadline=1060)
    line = headline(scene, None, NOW)
    assert line == "round 3 of 9: training, 1 of 3 replies, waiting for b, 60 s left"


def test_a_run_that_gives_no_sign_is_told_with_the_way_out() -> None:
    line = headline(live(), None, NOW + 60, "first")
    assert "NO UPDATE for 60 s" in line
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
    LiveStateFile(folder).show(live(ready=["a"], asked=["a"], refused={"z": "no picture"}))
    rows = {line.split()[0]: line for line in told(tmp_path).splitlines() if line.strip()}
    assert "at work" in rows["a"]
    assert "2.5" in rows["a"]
    assert "2.00" in rows["a"]
    assert "offline" in rows["b"]
    assert "it went offline" in rows["b"]
    assert "no picture" in rows["z"]


def crowd(folder: Path, **changes: Any) -> None:
    """8,000 clients that are there, and four that are not all well; one round is done."""
    names = [str(number) for number in range(8000)]
    dropped = {"7": "out of memory", "8000": "it went offline", "9999": "it went offline"}
    Recorder(folder / RECORDS).append(
        RoundRecord(1, 0.1, ["7", "8000", "9998", "9999"], ["9998"], dropped)
    )
    scene = {
        "ready": names, "asked": names[100:200], "missing": {"195": "its disk is full"},
        "answered": dict.fromkeys(names[100:190], 1.0), "refused": {"late": "no picture"},
    }  # fmt: skip
    LiveStateFile(folder).show(live(**scene, **changes))


def test_of_many_clients_those_that_need_a_look_are_listed_and_the_others_counted(
    tmp_path: Path,
) -> None:
    crowd(tmp_path / "first")
    first, counts, _, *rows, more = told(tmp_path).splitlines()
    assert first.startswith("first: round 3 of 9: training, 90 of 100 replies")
    assert counts == (
        "8,004 clients: 1 refused, 3 offline, 1 missing, 9 at work, 90 answered, 7,900 ready"
    )
    assert [row.split()[0] for row in rows] == [
        "late", "8000", "9999", "9998", "195", *map(str, range(190, 195)),
        *map(str, range(196, 200)), "7",
    ]  # fmt: skip
    assert more == "7,989 more, not listed: fedkeel status first --all"


def test_all_clients_are_listed_when_they_are_asked_for(tmp_path: Path) -> None:
    names = [str(number) for number in range(FEW_CLIENTS + 1)]
    LiveStateFile(tmp_path / "first").show(live(ready=names))
    assert [row.split()[0] for row in told(tmp_path, every_client=True).splitlines()[3:]] == names
    assert told(tmp_path).splitlines()[1:] == [
        "21 clients: 21 ready",
        "21 more, not listed: fedkeel status first --all",
    ]


def test_the_list_of_those_that_need_a_look_is_short_whatever_happens(tmp_path: Path) -> None:
    crowd(tmp_path / "first", again=[str(number) for number in range(1000)])
    assert len(told(tmp_path).splitlines()) == 3 + FEW_CLIENTS + 1


def test_few_clients_all_have_a_line_and_nothing_is_said_of_more(tmp_path: Path) -> None:
    everyone = [str(number) for number in range(FEW_CLIENTS)]
    LiveStateFile(tmp_path / "first").show(live(ready=everyone))
    _, counts, _, *rows = told(tmp_path).splitlines()
    assert counts == "20 clients: 20 ready"
    assert [row.split() for row in rows] == [[name, "ready"] for name in everyone]


def test_after_the_end_only_those_that_were_dropped_need_a_look(tmp_path: Path) -> None:
    crowd(tmp_path / "first")
    write_outcome(tmp_path / "first", Outcome("completed", "", 2, 1.0))
    _, counts, _, *rows, more = told(tmp_path).splitlines()
    assert counts == "8,004 clients"
    assert [row.split()[0] for row in rows] == ["7", "8000", "9999"]
    assert "8,001 more" in more


def test_terminal_codes_of_strangers_are_not_passed_on(tmp_path: Path) -> None:
    evil = "x\x1b[2J\x1b]0;pwn\x07\nfake line"
    folder = tmp_path / "first"
    LiveStateFile(folder).show(live(phase=evil, ready=[evil], refused={evil: evil}, asked=[evil]))
    text = told(tmp_path)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert not any(line.startswith("fake") for line in text.splitlines())


@pytest.mark.parametrize(
    "said",
    ["", "[]", '{"phase": 5}', '{"phase":"t","round":"x","rounds":1,"since":0}',
     '{"phase":"t","round":1,"rounds":1,"since":0,"asked":3}',
     *(f'{{"phase":"t","round":1,"rounds":1,"since":0,{part}}}' for part in (
         '"answered":{"a":"x"}', '"deadline":"soon"', '"ready":[1]', '"missing":{"b":3}',
         '"asked":[["a"]]', '"late":{"a":null}',
     ))],
)  # fmt: skip
def test_a_damaged_live_file_is_as_none(tmp_path: Path, said: str) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / LIVE).write_text(said)
    assert read_live_state(tmp_path / "first") is None
    assert "not started" in told(tmp_path, "first")


def test_a_live_file_is_read_as_it_was_written_and_can_be_forgotten(tmp_path: Path) -> None:
    scene = live(asked=["a"], answered={"a": 1.5}, late={"b": "its reply came"})
    LiveStateFile(tmp_path).show(scene)
    found = read_live_state(tmp_path)
    assert found is not None
    assert found.updated > NOW
    assert json.loads((tmp_path / LIVE).read_text())["answered"] == {"a": 1.5}
    assert found.awaited == []
    clear_live_state(tmp_path)
    assert read_live_state(tmp_path) is None


def test_without_a_name_the_newest_run_is_meant_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        write_outcome(tmp_path / name, Outcome("completed", "", 1, 1.0))
    assert find_run(tmp_path, "").name == "new"
    with pytest.raises(ConfigError, match=r'no run "nwe" in .*; there are: new, old'):
        find_run(tmp_path, "nwe")
    with pytest.raises(ConfigError, match="there are: none"):
        find_run(tmp_path / "nowhere", "")
