"""Whoever watches a run sees every round once, and the end, whatever state the files are in."""

import io
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.runs.client_scores import ClientScore, Evaluation
from common.runs.json_file import RecordError
from common.runs.memory_note import estimated_bytes, write_memory_note
from common.runs.outcome import Outcome, write_outcome
from common.runs.records import RECORDS, Recorder, RoundRecord
from deploy.engines import progress
from deploy.engines.progress import Pace, RunProgress, Tail, follow, lines_about, picture

DONE = Outcome("completed", "3 rounds", 3, 1.0)


def evaluation_of(*correct: int) -> Evaluation:
    scores = {str(i): ClientScore(10, right, 1.0) for i, right in enumerate(correct)}
    return Evaluation.of(scores, {})


def record(number: int, **changes: Any) -> RoundRecord:
    return RoundRecord(number, 0.1, ["0"], ["0"], **changes)


def write(folder: Path, *records: RoundRecord) -> None:
    for one in records:
        Recorder(folder / RECORDS).append(one)


def rounds(tail: Tail) -> list[int]:
    return [record.round for record in tail.read()]


def steps(*actions: Callable[[], object]) -> Callable[[], bool]:
    """An `is_alive` that does one action at each look and is dead after the last."""
    left = list(actions)

    def is_alive() -> bool:
        if left:
            left.pop(0)()
        return bool(left)

    return is_alive


def watch(
    folder: Path, is_alive: Callable[[], bool], terminal: bool = False
) -> tuple[Outcome | None, str]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    outcome = follow(folder, "FedPCD", 3, 0.0, is_alive, console)
    return outcome, out.getvalue()


def seen(screen: str) -> str:
    """What a terminal was sent, without its control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)


def test_each_record_is_read_once(tmp_path: Path) -> None:
    tail = Tail(tmp_path / RECORDS)
    assert rounds(tail) == []
    write(tmp_path, record(1), record(2))
    assert rounds(tail) == [1, 2]
    assert rounds(tail) == []
    write(tmp_path, record(3))
    assert rounds(tail) == [3]


def test_a_line_may_arrive_byte_by_byte(tmp_path: Path) -> None:
    write(tmp_path / "whole", record(1), record(2))
    whole = (tmp_path / "whole" / RECORDS).read_bytes()
    tail, found = Tail(tmp_path / RECORDS), []
    for byte in range(len(whole)):
        with (tmp_path / RECORDS).open("ab") as file:
            file.write(whole[byte : byte + 1])
        found += rounds(tail)
    assert found == [1, 2]


def test_only_new_bytes_are_read(tmp_path: Path) -> None:
    write(tmp_path, record(1))
    tail = Tail(tmp_path / RECORDS)
    tail.read()
    with (tmp_path / RECORDS).open("r+b") as file:
        file.write(b"X" * 20)  # would be damage if it were read again
    write(tmp_path, record(2))
    assert rounds(tail) == [2]


def test_a_resume_that_cuts_the_file_neither_repeats_nor_loses_a_round(tmp_path: Path) -> None:
    write(tmp_path, *map(record, range(1, 6)))
    tail = Tail(tmp_path / RECORDS)
    assert rounds(tail) == [1, 2, 3, 4, 5]
    Recorder(tmp_path / RECORDS).truncate_after(3)
    write(tmp_path, record(4))
    assert rounds(tail) == []
    write(tmp_path, record(5), record(6))
    assert rounds(tail) == [6]


def test_a_cut_that_was_outgrown_between_two_looks_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, *map(record, range(1, 6)))
    tail = Tail(tmp_path / RECORDS)
    tail.read()
    Recorder(tmp_path / RECORDS).truncate_after(1)
    write(tmp_path, record(2, void="x" * 997), *map(record, range(3, 9)))
    assert rounds(tail) == [6, 7, 8]


def test_a_broken_line_is_told_with_its_number_in_the_file(tmp_path: Path) -> None:
    write(tmp_path, record(1))
    tail = Tail(tmp_path / RECORDS)
    tail.read()
    with (tmp_path / RECORDS).open("ab") as file:
        file.write(b"broken\n")
    with pytest.raises(RecordError, match="line 2"):
        tail.read()


def test_a_pipe_gets_one_line_per_evaluation_drop_and_void_round(tmp_path: Path) -> None:
    write(
        tmp_path,
        record(1),
        record(2, dropped={"7": "no [reply] in 5 s", "8": "NaN"}, void="0 of 1 replies"),
        record(3, evaluation=evaluation_of(9, 5)),
    )
    write_outcome(tmp_path, DONE)
    outcome, text = watch(tmp_path, lambda: True)
    assert outcome == DONE
    assert text.splitlines() == [
        "FedPCD: round 2/3: client 7 dropped: no [reply] in 5 s",
        "FedPCD: round 2/3: client 8 dropped: NaN",
        "FedPCD: round 2/3: void, nothing changed: 0 of 1 replies",
        "FedPCD: round 3/3: mean accuracy 70.0 %, worst 10 % 50.0 % (2 clients)",
    ]


def test_a_long_line_in_a_pipe_is_not_broken(tmp_path: Path) -> None:
    write(tmp_path, record(1, void="reason " * 40))
    _, text = watch(tmp_path, lambda: False)
    assert len(text.splitlines()) == 1


def test_the_clients_own_models_get_a_line_of_their_own() -> None:
    both = replace(evaluation_of(5, 5), personal=evaluation_of(9, 7))
    lines = list(lines_about(record(1, evaluation=both), "x", 3))
    assert lines[1:] == [
        "x: round 1/3: the clients' own models: mean accuracy 80.0 %, worst 10 % 70.0 % (2 clients)"
    ]


def test_an_evaluation_without_result_says_so() -> None:
    lines = list(lines_about(record(1, evaluation=evaluation_of()), "x", 3))
    assert lines == ["x: round 1/3: evaluated, but no client had a result"]


@pytest.mark.parametrize("terminal", [True, False])
def test_following_starts_before_the_directory_exists_and_ends_with_the_outcome(
    tmp_path: Path, terminal: bool
) -> None:
    folder = tmp_path / "later"
    is_alive = steps(
        lambda: None,
        lambda: write(folder, record(1)),
        lambda: write(folder, record(2), record(3, evaluation=evaluation_of(5))),
        lambda: write_outcome(folder, DONE),
        lambda: pytest.fail("looked again after the end"),
    )
    outcome, text = watch(folder, is_alive, terminal)
    assert outcome == DONE
    assert "mean accuracy 50.0 %" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_that_died_silently_ends_without_outcome_but_with_its_last_record(
    tmp_path: Path, terminal: bool
) -> None:
    is_alive = steps(lambda: None, lambda: write(tmp_path, record(1, void="the last words")))
    outcome, text = watch(tmp_path, is_alive, terminal)
    assert outcome is None
    assert "the last words" in text


def test_what_a_dying_run_writes_last_is_still_read(tmp_path: Path) -> None:
    def dies() -> bool:
        write(tmp_path, record(3, evaluation=evaluation_of(5)))
        write_outcome(tmp_path, DONE)
        return False

    outcome, text = watch(tmp_path, dies)
    assert outcome == DONE
    assert "round 3/3" in text


def test_a_terminal_shows_bar_accuracy_drops_and_voids(tmp_path: Path) -> None:
    write(
        tmp_path,
        record(1, dropped={"7": "late"}),
        record(2, evaluation=evaluation_of(8, 4), void="too few replies"),
    )
    _, screen = watch(tmp_path, lambda: False, terminal=True)
    text = seen(screen)
    assert "2/3" in text
    assert "mean accuracy 60.0 %, worst 10 % 40.0 % (2 clients) after round 2" in text
    assert "1 dropped so far; last in round 1, client 7: late" in text
    assert "1 void so far; last round 2: too few replies" in text


def test_rounds_from_before_the_first_look_say_nothing_of_the_pace(tmp_path: Path) -> None:
    write(tmp_path, record(1), record(2))
    _, screen = watch(tmp_path, lambda: False, terminal=True)
    assert "2/3  -  time left unknown" in seen(screen)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_large_memory_estimate_is_printed_once_as_soon_as_it_is_known(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "measure_memory", lambda: (10**9, 729 * 10**6, None))
    tell = partial(write_memory_note, tmp_path, "73 MB (65 remembered)")
    life = (lambda: None, tell, lambda: write(tmp_path, record(1)), lambda: None)
    _, screen = watch(tmp_path, steps(*life), terminal)
    line = (
        "FedPCD: the server needs at most 73 MB (65 remembered), besides its program: 0.7 GB of "
        "memory available, of 1.0 GB in the machine"
    )
    assert [one for one in seen(screen).splitlines() if "at most" in one] == [line]
    assert "at most" not in watch(tmp_path / "other", lambda: False, terminal)[1]


def test_a_memory_estimate_below_a_tenth_of_the_free_memory_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "measure_memory", lambda: (10**9, 730 * 10**6, None))
    write_memory_note(tmp_path, "73 MB (65 remembered)")
    assert watch(tmp_path, lambda: False)[1] == ""


@pytest.mark.parametrize(
    ("note", "size"),
    [
        ("8.4 MB (4.4 remembered)", 8.4e6),
        ("12,345 MB (65 remembered)", 12_345e6),
        ("damaged", float("inf")),
    ],
)
def test_the_size_of_a_memory_estimate(note: str, size: float) -> None:
    assert estimated_bytes(note) == pytest.approx(size)


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_passes_through_and_gives_the_cursor_back(tmp_path: Path, terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)

    def interrupt() -> bool:
        raise KeyboardInterrupt

    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        follow(tmp_path, "x", 3, 0.0, interrupt, console)
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h")
    assert threading.active_count() == threads


def test_run_progress_counts_everything_and_keeps_the_last_of_each() -> None:
    progress = RunProgress()
    for one in (
        record(1, dropped={"1": "a", "2": "b"}, evaluation=evaluation_of(5)),
        record(2, void="v"),
        record(3, dropped={"3": "c"}, evaluation=evaluation_of()),
    ):
        progress = progress.after(one)
    assert (progress.round, progress.drops, progress.voids) == (3, 3, 1)
    assert progress.last_drop == "round 3, client 3: c"
    assert progress.evaluated == 1


@pytest.mark.parametrize(
    ("pace", "says", "left"),
    [
        (Pace(0, 0.0), "-", "time left unknown"),
        (Pace(10, 5.0), "2.0 rounds/s", "1:00 left"),
        (Pace(2, 61.0), "30.5 s/round", "1:01:00 left"),
    ],
)
def test_the_pace_is_in_the_unit_that_reads_well(pace: Pace, says: str, left: str) -> None:
    assert (str(pace), pace.left(120)) == (says, left)


def test_the_picture_fits_a_narrow_terminal_and_a_run_of_no_rounds() -> None:
    out = io.StringIO()
    progress = RunProgress(last_drop="x" * 300, drops=1)
    Console(file=out, width=80).print(picture(progress, Pace(0, 0.0), "FedMGDA+", 0))
    assert max(map(len, out.getvalue().splitlines())) <= 80
