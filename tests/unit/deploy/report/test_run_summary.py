"""The report says what the records say, marks the best, and draws whatever there is."""

import io
import json
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import pytest
from rich.console import Console

from common.fairness import Fairness
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.records import RECORDS, Recorder, RoundRecord
from deploy.report.columns import megabytes_per_client_round, seconds_per_round
from deploy.report.run_data import RunData, load_runs
from deploy.report.run_summary import (
    measured,
    summary_json,
    summary_table,
    write_summary,
)


def evaluation_of(*correct: int, absent: tuple[str, ...] = ()) -> Evaluation:
    """Clients with 100 test examples each."""
    scores = {str(i): ClientScore(100, right, 50.0) for i, right in enumerate(correct)}
    return Evaluation.of(scores, dict.fromkeys(absent, "offline"))


def record(number: int, evaluation: Evaluation | None = None, **changes: object) -> RoundRecord:
    plain = RoundRecord(
        round=number,
        lr=0.1,
        cohort=["0", "1"],
        replied=["0", "1"],
        bytes_down={"0": 2_000_000, "1": 2_000_000},
        bytes_up={"0": 1_000_000, "1": 1_000_000},
        seconds={"configure": 0.5, "train": 1.0, "evaluate": 9.0},
        evaluation=evaluation,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


EVEN = RunData("even", (record(1), record(2, evaluation_of(60, 60, 60, 60))))
UNEVEN = RunData("uneven", (record(1), record(2, evaluation_of(10, 90, 90, 90))))
NOTHING = RunData("nothing", ())
UNEVALUATED = RunData("unevaluated", (record(1),))


def text_of(*runs: RunData, data: str = "") -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(summary_table(runs, data))
    return out.getvalue()


def row_of(label: str, text: str) -> str:
    rows = [line.split() for line in text.splitlines()]
    return next(" ".join(row) for row in rows if row[:1] == [label])


def bold(*runs: RunData) -> list[list[bool]]:
    """Which cells are bold, by run."""
    columns = summary_table(runs).columns[1:]
    marked = [[getattr(cell, "style", "") == "bold" for cell in column.cells] for column in columns]
    return [list(row) for row in zip(*marked, strict=True)]


def test_the_table_shows_the_last_evaluation_of_each_method() -> None:
    text = text_of(EVEN, UNEVEN)
    uneven, even = row_of("uneven", text), row_of("even", text)
    assert uneven == "uneven 70.00 % 10.00 % 34.64 % 0.803 10.00 % 3.00 1.50"
    assert even == "even 60.00 % 60.00 % 0.00 % 1.000 60.00 % 3.00 1.50"


def test_the_best_of_each_column_is_bold_and_a_column_of_equals_is_not() -> None:
    assert bold(EVEN, UNEVEN) == [
        [False, True, True, True, True, False, False],
        [True, False, False, False, False, False, False],
    ]
    assert bold(EVEN) == [[False] * 7]


def test_the_cheapest_is_best_for_bytes_and_seconds() -> None:
    cheap = RunData("cheap", (replace(record(1), bytes_up={"0": 1}, seconds={"train": 0.1}),))
    assert [row[5:] for row in bold(EVEN, cheap)] == [[False, False], [True, True]]


def test_it_fits_into_80_columns_and_says_what_was_measured() -> None:
    runs = [replace(EVEN, label="FedMGDA+"), replace(UNEVEN, label="FedPCD")]
    text = text_of(*runs, data="Fashion-MNIST, Dirichlet(0.1)")
    assert max(map(len, text.splitlines())) <= 80
    assert "FedMGDA+" in text
    joined = " ".join(text.split())
    assert "Fashion-MNIST, Dirichlet(0.1); 4 clients; 2 rounds; evaluated after round 2" in joined


def test_runs_that_differ_are_told_apart_under_the_table() -> None:
    other = RunData("other", (record(3, evaluation_of(50, absent=("7", "8"))), record(4)))
    line = measured([EVEN, other])
    assert "even: 4 clients, other: 1 clients (2 more without a result)" in line
    assert "even: 2 rounds, other: 4 rounds" in line
    assert "even: evaluated after round 2, other: evaluated after round 3" in line


def test_a_label_is_never_read_as_markup() -> None:
    assert "[red]x" in text_of(replace(EVEN, label="[red]x"))


def test_what_is_missing_is_a_dash() -> None:
    text = text_of(NOTHING, UNEVALUATED, EVEN)
    assert row_of("nothing", text) == "nothing - - - - - - -"
    assert row_of("unevaluated", text) == "unevaluated - - - - - 3.00 1.50"
    assert "nothing evaluated yet" in measured([NOTHING])


def test_an_evaluation_that_reached_nobody_does_not_hide_the_one_before() -> None:
    run = RunData("x", (*EVEN.records, record(3, evaluation_of(absent=("0", "1")))))
    assert run.last_evaluation is not None
    assert run.last_evaluation[0] == 2
    assert run.curve == [(2, pytest.approx(0.6))]


def test_bytes_are_those_of_a_client_that_was_asked_and_of_one_that_replied() -> None:
    lost = record(1, bytes_down={"0": 4_000_000, "1": 4_000_000}, bytes_up={"0": 2_000_000})
    assert megabytes_per_client_round(RunData("x", (lost,))) == 6.0
    silent = replace(lost, bytes_up={})
    assert megabytes_per_client_round(RunData("x", (silent,))) == 4.0
    assert megabytes_per_client_round(NOTHING) is None


def test_seconds_leave_the_evaluation_out() -> None:
    assert seconds_per_round(EVEN) == 1.5
    assert seconds_per_round(NOTHING) is None


def test_the_json_summary_is_valid_and_holds_the_same_numbers(tmp_path: Path) -> None:
    path = write_summary([EVEN, UNEVEN, NOTHING], tmp_path / "new", "toy")
    summary = json.loads(path.read_text())
    assert summary == summary_json([EVEN, UNEVEN, NOTHING], "toy")
    even, uneven, nothing = summary["runs"]
    assert Fairness(**even["fairness"]).worst10 == pytest.approx(0.6)
    assert even["evaluated_round"] == 2
    assert even["loss"] == 0.5
    assert uneven["rounds_to_final_accuracy_of"] == {"even": 2}
    assert even["rounds_to_final_accuracy_of"] == {"uneven": None}
    assert nothing["fairness"] is nothing["loss"] is nothing["evaluated_round"] is None


def test_a_full_disk_leaves_the_summary_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    before = write_summary([EVEN], tmp_path).read_bytes()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_summary([UNEVEN], tmp_path)
    assert (tmp_path / "summary.json").read_bytes() == before


def test_void_rounds_and_drops_are_counted() -> None:
    void = record(1, dropped={"0": "late", "1": "late"}, void="no usable reply", bytes_up={})
    (numbers,) = summary_json([RunData("x", (void, record(2, dropped={"0": "late"})))])["runs"]
    assert (numbers["void_rounds"], numbers["drops"]) == (1, 3)


def test_runs_are_loaded_in_the_order_given(tmp_path: Path) -> None:
    for name, run in (("b", EVEN), ("a", UNEVEN)):
        for one in run.records:
            Recorder(tmp_path / name / RECORDS).append(one)
    loaded = load_runs({"even": tmp_path / "b", "uneven": tmp_path / "a"})
    assert [(run.label, run.records) for run in loaded] == [
        ("even", EVEN.records),
        ("uneven", UNEVEN.records),
    ]


def test_the_clients_own_models_count_as_a_run_more(tmp_path: Path) -> None:
    both = replace(evaluation_of(20, 60), personal=evaluation_of(80, 90))
    for one in (record(1), record(2, both), record(3, evaluation_of(30, 70))):
        Recorder(tmp_path / RECORDS).append(one)
    run, own = load_runs({"ditto": tmp_path})
    assert (run.label, own.label) == ("ditto", "ditto, own models")
    assert run.curve == [(2, 0.4), (3, 0.5)]
    assert own.curve == [(2, pytest.approx(0.85))]
    assert "85.00 %" in text_of(run, own)
