"""A run's records survive kills, hold no NaN, and come back as they were written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import DataError
from common.runs.client_scores import NO_EXAMPLES, ClientScore, Evaluation
from common.runs.json_file import RecordError
from common.runs.outcome import OUTCOME, Outcome, clear_outcome, read_outcome, write_outcome
from common.runs.records import RECORDS, Recorder, RoundRecord, read_records

SCORES = {"0": ClientScore(10, 7, 4.5), "1": ClientScore(5, 0, 9.0)}
KEYS = {
    "round", "lr", "cohort", "replied", "dropped", "void", "train_loss", "bytes_down", "bytes_up",
    "again", "late", "arrived", "worked", "examples", "lengths", "seconds", "method",
    "diagnostics", "evaluation",
}  # fmt: skip


def full_record(number: int = 1, **changes: Any) -> RoundRecord:
    record = RoundRecord(
        round=number,
        lr=0.1,
        cohort=["0", "1", "2"],
        replied=["0", "1"],
        dropped={"2": "no reply within 60 s"},
        train_loss=1.25,
        bytes_down={"0": 800, "1": 800, "2": 800},
        bytes_up={"0": 400, "1": 400},
        seconds={"configure": 0.1, "train": 2.0, "aggregate": 0.2, "checkpoint": 0.1},
        method={"feasible": True, "largest": 0.36, "rule": "mean", "bent": [1, 2]},
        evaluation=Evaluation.of(SCORES, {"2": "offline"}),
    )
    return replace(record, **changes)


def run_of(folder: Path, *rounds: int) -> Recorder:
    recorder = Recorder(folder / RECORDS)
    for number in rounds:
        recorder.append(full_record(number))
    return recorder


def no_constant(name: str) -> None:
    raise AssertionError(f"bare {name}")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    void = RoundRecord(2, 0.1, ["0"], [], dropped={"0": "lost"}, void="1 of 2 replies needed")
    recorder = Recorder(tmp_path / "new" / RECORDS)
    recorder.append(full_record())
    recorder.append(void)
    assert read_records(tmp_path / "new") == [full_record(), void]


def test_each_line_has_exactly_the_promised_keys(tmp_path: Path) -> None:
    run_of(tmp_path, 1)
    (line,) = (tmp_path / RECORDS).read_text().splitlines()
    value = json.loads(line)
    assert set(value) == KEYS
    parts = {"clients", "absent", "fairness", "personal", "untrained"}
    assert set(value["evaluation"]) == parts
    assert value["evaluation"]["clients"]["0"] == {"examples": 10, "correct": 7, "loss_sum": 4.5}


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/5240
def test_non_finite_numbers_become_null_and_the_json_stays_valid(tmp_path: Path) -> None:
    score = {"0": ClientScore(10, 7, float("nan")), "1": ClientScore(2, 1, 3.0)}
    record = full_record(
        train_loss=float("inf"),
        method={"residual": np.float32("nan"), "many": np.array([1.0, np.inf])},
        evaluation=Evaluation.of(score, {}),
    )
    Recorder(tmp_path / RECORDS).append(record)
    value = json.loads((tmp_path / RECORDS).read_text(), parse_constant=no_constant)
    assert value["train_loss"] is None
    assert value["method"] == {"residual": None, "many": [1.0, None]}
    assert value["evaluation"]["clients"]["0"]["loss_sum"] is None
    assert value["evaluation"]["fairness"]["clients"] == 2


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.0), 2.0),
        (np.arange(3), [0, 1, 2]),
        ((1, "a", None), [1, "a", None]),
        ({3: np.float64(1)}, {"3": 1.0}),
    ],
)
def test_numpy_scalars_are_converted(given: Any, kept: Any, tmp_path: Path) -> None:
    Recorder(tmp_path / RECORDS).append(full_record(method={"value": given}))
    (record,) = read_records(tmp_path)
    assert record.method == {"value": kept}
    assert type(record.method["value"]) is type(kept)


def test_what_json_cannot_say_is_refused_by_name_and_leaves_no_trace(tmp_path: Path) -> None:
    recorder = run_of(tmp_path, 1)
    with pytest.raises(RecordError, match=r"method\.deep\[0\] is a set"):
        recorder.append(full_record(2, method={"deep": [{1, 2}]}))
    assert [record.round for record in read_records(tmp_path)] == [1]


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/246
def test_a_client_without_test_examples_is_listed_as_absent() -> None:
    evaluation = Evaluation.of({**SCORES, "2": ClientScore(0, 0, None)}, {"3": "offline"})
    assert set(evaluation.clients) == {"0", "1"}
    assert evaluation.absent == {"2": NO_EXAMPLES, "3": "offline"}
    assert evaluation.fairness is not None
    assert evaluation.fairness.clients == 2
    assert evaluation.fairness.mean == pytest.approx(0.35)


def test_an_evaluation_that_reached_nobody_has_no_numbers(tmp_path: Path) -> None:
    evaluation = Evaluation.of({"0": ClientScore(0, 0, 0.0)}, {})
    assert (evaluation.fairness, evaluation.loss) == (None, None)
    Recorder(tmp_path / RECORDS).append(full_record(evaluation=evaluation))
    assert read_records(tmp_path)[0].evaluation == evaluation


def test_the_mean_loss_is_over_the_clients_that_have_one() -> None:
    nan = ClientScore(100, 0, float("nan"))
    assert Evaluation.of({**SCORES, "2": nan, "3": replace(nan, loss_sum=None)}, {}).loss == 0.9


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(DataError, match="client 4"):
        Evaluation.of({"4": ClientScore(3, 4, 0.0)}, {})


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_torn_last_line_is_no_record_and_the_next_append_replaces_it(
    tmp_path: Path, cut: int
) -> None:
    recorder = run_of(tmp_path, 1, 2, 3)
    path = tmp_path / RECORDS
    path.write_bytes(path.read_bytes()[:-cut])
    assert [record.round for record in read_records(tmp_path)] == [1, 2]
    recorder.append(full_record(3))
    assert [record.round for record in read_records(tmp_path)] == [1, 2, 3]


def test_a_file_that_holds_only_a_torn_line_starts_afresh(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_bytes(b'{"round": 1, "lr"')
    assert read_records(tmp_path) == []
    run_of(tmp_path, 1)
    assert len(read_records(tmp_path)) == 1


@pytest.mark.parametrize(
    "broken",
    [
        b"half a line\n",
        b"\n",
        b"[1, 2]\n",
        b"null\n",
        b'{"round": 2}\n',
        b'{"round": NaN}\n',
        b"\xff\xfe\n",
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_any_other_damage_is_told_with_file_and_line(
    tmp_path: Path, broken: bytes, last: bool
) -> None:
    run_of(tmp_path, 1)
    path = tmp_path / RECORDS
    path.write_bytes(path.read_bytes() + broken + (b"" if last else path.read_bytes()))
    with pytest.raises(RecordError, match=r"records\.jsonl, line 2"):
        read_records(tmp_path)


DEEP = b'{"personal":' * 100_000
WRONG: list[tuple[list[str], Any]] = [
    (["round"], "4"),
    (["round"], 4.5),
    (["round"], 10**400),
    (["lr"], "abc"),
    (["lr"], None),
    (["cohort"], None),
    (["train_loss"], "x"),
    (["dropped"], ["a"]),
    (["dropped"], None),
    (["dropped"], {"0": 5}),
    (["void"], 5),
    (["bytes_up"], {"0": None}),
    (["bytes_down"], [1]),
    (["seconds"], {"train": None}),
    (["seconds"], [1]),
    (["method"], None),
    (["method"], [1]),
    (["diagnostics"], None),
    (["diagnostics"], "x"),
    (["evaluation", "fairness", "mean"], None),
    (["evaluation", "fairness", "mean"], "x"),
    (["evaluation", "clients", "0", "examples"], 0),
    (["evaluation", "clients", "0", "correct"], 11),
    (["evaluation", "clients", "0", "correct"], -1),
    (["evaluation", "clients", "0", "correct"], None),
    (["evaluation", "absent"], ["a"]),
    (["evaluation", "untrained"], None),
    (["evaluation", "personal"], {}),
    (["evaluation"], []),
]


@pytest.mark.parametrize(("place", "value"), WRONG)
def test_a_value_of_another_kind_is_told_by_its_place(
    tmp_path: Path, place: list[str], value: Any
) -> None:
    line = full_record(2).to_json()
    whole: Any = line
    for key in place[:-1]:
        whole = whole[key]
    whole[place[-1]] = value
    recorder = run_of(tmp_path, 1)
    recorder.path.write_bytes(recorder.path.read_bytes() + json.dumps(line).encode() + b"\n")
    with pytest.raises(RecordError, match=rf"records\.jsonl, line 2.*{place[0]}"):
        read_records(tmp_path)


def test_own_models_counts_are_looked_at_too(tmp_path: Path) -> None:
    own = Evaluation({"0": ClientScore(0, 0, None)}, {}, None)
    evaluation = replace(Evaluation.of(SCORES, {}), personal=own)
    Recorder(tmp_path / RECORDS).append(full_record(evaluation=evaluation))
    with pytest.raises(
        RecordError, match=r"evaluation\.personal\.clients\.0: expected 0 <= correct"
    ):
        read_records(tmp_path)


def test_what_is_nested_without_end_is_damage_too(tmp_path: Path) -> None:
    for name in (RECORDS, OUTCOME):
        (tmp_path / name).write_bytes(DEEP + b"\n")
    with pytest.raises(RecordError, match="line 1"):
        read_records(tmp_path)
    with pytest.raises(RecordError, match=r"outcome\.json"):
        read_outcome(tmp_path)


def test_an_older_line_without_the_newer_fields_is_read(tmp_path: Path) -> None:
    newer = {"again", "late", "arrived", "worked", "diagnostics"}
    line = {key: value for key, value in full_record().to_json().items() if key not in newer}
    del line["evaluation"]["personal"], line["evaluation"]["untrained"]
    (tmp_path / RECORDS).write_text(json.dumps(line) + "\n")
    assert read_records(tmp_path) == [full_record()]


def test_a_bare_nan_in_an_otherwise_good_line_is_damage(tmp_path: Path) -> None:
    run_of(tmp_path, 1)
    path = tmp_path / RECORDS
    path.write_bytes(path.read_bytes().replace(b'"train_loss": 1.25', b'"train_loss": NaN'))
    with pytest.raises(RecordError, match=r"line 1.*NaN"):
        read_records(tmp_path)


@pytest.mark.parametrize("rounds", [(1, 2, 2), (1, 3, 2)])
def test_two_runs_in_one_directory_are_noticed(tmp_path: Path, rounds: tuple[int, ...]) -> None:
    run_of(tmp_path, *rounds)
    with pytest.raises(RecordError, match="line 3: round 2 comes after round"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("last", "left"), [(0, []), (3, [1, 2, 3]), (4, [1, 2, 3]), (9, [1, 2, 3, 5])]
)
def test_a_resume_drops_the_later_rounds_and_goes_on(
    tmp_path: Path, last: int, left: list[int]
) -> None:
    recorder = run_of(tmp_path, 1, 2, 3, 5)
    before = (tmp_path / RECORDS).read_bytes()
    recorder.truncate_after(last)
    after = (tmp_path / RECORDS).read_bytes()
    assert before.startswith(after)
    recorder.append(full_record(10))
    assert [record.round for record in read_records(tmp_path)] == [*left, 10]
    assert [file.name for file in tmp_path.iterdir()] == [RECORDS]


def test_a_resume_drops_the_torn_line_too(tmp_path: Path) -> None:
    recorder = run_of(tmp_path, 1, 2)
    path = tmp_path / RECORDS
    path.write_bytes(path.read_bytes()[:-5])
    recorder.truncate_after(2)
    assert path.read_bytes().endswith(b"}\n")


def test_nothing_to_truncate_is_fine(tmp_path: Path) -> None:
    Recorder(tmp_path / RECORDS).truncate_after(3)
    assert list(tmp_path.iterdir()) == []
    assert read_records(tmp_path) == []


def test_the_outcome_is_read_back_and_can_be_cleared(tmp_path: Path) -> None:
    assert read_outcome(tmp_path) is None
    for outcome in (Outcome("stopped", "by hand", 3, 1.5), Outcome("completed", "", 9, 4.0)):
        write_outcome(tmp_path, outcome)
        assert read_outcome(tmp_path) == outcome
    assert [file.name for file in tmp_path.iterdir()] == [OUTCOME]
    clear_outcome(tmp_path)
    clear_outcome(tmp_path)
    assert read_outcome(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"status": "won"}',
        '"x"',
        '{"status": ["failed"], "message": "", "rounds": 1, "seconds": 1}',
        '{"status": "failed", "message": 5, "rounds": 1, "seconds": 1}',
        '{"status": "failed", "message": "", "rounds": "x", "seconds": null}',
    ],
)
def test_a_foreign_outcome_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / OUTCOME).write_text(text)
    with pytest.raises(RecordError, match=r"outcome\.json"):
        read_outcome(tmp_path)


def test_a_status_outside_the_three_is_refused() -> None:
    with pytest.raises(RecordError, match="completed, failed, stopped"):
        Outcome("won", "", 1, 1.0)  # type: ignore[arg-type]


def test_an_unwritable_place_is_told_as_our_own_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="round 1 cannot be recorded"):
        Recorder(tmp_path / "file" / RECORDS).append(full_record())
    with pytest.raises(RecordError, match="cannot be written"):
        write_outcome(tmp_path / "file", Outcome("completed", "", 1, 1.0))


def test_the_scores_of_own_models_come_back_as_they_were(tmp_path: Path) -> None:
    own = replace(Evaluation.of(SCORES, {"3": "offline"}), untrained=["1"])
    evaluation = replace(Evaluation.of(SCORES, {}), personal=own)
    Recorder(tmp_path / RECORDS).append(full_record(evaluation=evaluation))
    assert read_records(tmp_path)[0].evaluation == evaluation
