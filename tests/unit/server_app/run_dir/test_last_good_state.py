"""A run keeps its last good state, and can be resumed from an earlier round."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import AggregationError, CheckpointError, ConfigError
from common.runs.json_file import RecordError
from common.runs.outcome import read_outcome
from common.runs.records import RoundRecord, read_records
from server_app.run_dir.checkpoint import DISCARDED
from server_app.run_dir.run_dir import CHECKPOINTS, RunDir, rewind_run
from tests.builders import assert_same
from tests.unit.server_app.run_dir.test_run_dir import LAYOUT, config_in, played, state_of

VOID = "0 of 1 replies usable, 1 needed"


def void_round(run_dir: RunDir, number: int, replied: list[str]) -> None:
    run_dir.save_record(RoundRecord(number, 0.1, ["0"], replied, void=VOID))


def resumed_round(out: Path) -> int:
    run_dir = RunDir.open(config_in(out, resume=True))
    state, _ = run_dir.restore(LAYOUT)
    assert state is not None
    assert_same(state, state_of(state.round))
    return state.round


def test_a_run_that_ends_with_void_rounds_keeps_its_last_good_state(tmp_path: Path) -> None:
    """No checkpoint of it was written: https://github.com/londonaicentre/FLIP/pull/1001."""
    run_dir = played(tmp_path, 3)
    for number in (4, 5):
        void_round(run_dir, number, ["0"])
    run_dir.finish(state_of(3), LAYOUT, 1.0)
    outcome = read_outcome(run_dir.path)
    assert outcome is not None
    assert outcome.message == "5 rounds, 2 of them void; the model is that of round 3"
    assert resumed_round(tmp_path) == 3
    assert [record.round for record in read_records(run_dir.path)] == [1, 2, 3]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), AggregationError("x")])
def test_a_run_that_ends_early_keeps_its_newest_state(tmp_path: Path, error: BaseException) -> None:
    run_dir = played(tmp_path, 3)
    run_dir.end_early(error, 3, 1.0)
    assert resumed_round(tmp_path) == 3


def test_a_state_from_which_no_client_could_train_is_not_kept_at_the_end(tmp_path: Path) -> None:
    run_dir = played(tmp_path, 3)
    void_round(run_dir, 4, [])
    run_dir.end_early(AggregationError("void"), 3, 1.0)
    assert resumed_round(tmp_path) == 2


def test_a_run_without_checkpoints_keeps_none_at_the_end(tmp_path: Path) -> None:
    run_dir = played(tmp_path, 3, **{"server.checkpoint-every": 0})
    run_dir.end_early(KeyboardInterrupt(), 3, 1.0)
    assert not (run_dir.path / CHECKPOINTS).exists()


def test_a_run_can_be_resumed_from_an_earlier_round_and_loses_no_file(tmp_path: Path) -> None:
    run_dir = played(tmp_path, 5, **{"server.keep-checkpoints": 9})
    folder = run_dir.path / CHECKPOINTS
    rewind_run(run_dir.path, 2)
    assert sorted(p.name for p in (folder / DISCARDED).iterdir()) == [
        "round-000004.ckpt",
        "round-000005.ckpt",
    ]
    assert resumed_round(tmp_path) == 2
    assert [record.round for record in read_records(run_dir.path)] == [1, 2]


def test_a_round_without_a_checkpoint_is_refused_with_the_rounds_there_are(tmp_path: Path) -> None:
    run_dir = played(tmp_path, 5, **{"server.keep-checkpoints": 9})
    with pytest.raises(CheckpointError, match=r"no checkpoint of round 3; there are: 2, 4, 5"):
        rewind_run(run_dir.path, 3)
    assert not (run_dir.path / CHECKPOINTS / DISCARDED).exists()


def test_a_run_under_way_is_not_rewound(tmp_path: Path) -> None:
    run_dir = played(tmp_path, 4)
    with run_dir.serving(), pytest.raises(ConfigError, match="is under way"):
        rewind_run(run_dir.path, 2)


def test_a_new_state_after_a_failed_round_is_kept_again(tmp_path: Path) -> None:
    run_dir = played(tmp_path, 3)
    void_round(run_dir, 4, [])
    run_dir.save_state(replace(state_of(5), round=5))
    run_dir.end_early(KeyboardInterrupt(), 5, 1.0)
    assert resumed_round(tmp_path) == 5


def test_a_run_directory_that_is_removed_during_the_run_is_an_error(tmp_path: Path) -> None:
    """The run went on, made a new directory with its last rounds, and ended as completed."""
    run_dir = played(tmp_path, 2)
    shutil.rmtree(run_dir.path)
    with pytest.raises(RecordError, match="was removed or emptied during the run"):
        run_dir.save_record(RoundRecord(3, 0.1, ["0"], ["0"]))
