"""A run's folder is never another run's, and a resume takes up exactly where the run stood."""

import tomllib
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config import RunConfig, flatten, nested, parse
from common.errors import CheckpointError, ConfigError
from common.layout import Tensor
from common.runs.memory_note import MEMORY, read_memory_note, write_memory_note
from common.runs.outcome import read_outcome
from common.runs.records import CONFIG_FILE, RECORDS, RoundRecord, read_records
from server_app.run_dir.checkpoint import save
from server_app.run_dir.run_dir import CHECKPOINTS, RunDir
from server_app.state.server_state import ServerState
from tests.builders import assert_same, layout_of_size

LAYOUT = layout_of_size(4, (Tensor("n.count", (), "int64"),))


def config_in(out: Path, **flat: Any) -> RunConfig:
    given = {"server.checkpoint-every": 2, **flat}
    return parse({"method": "fedavg", "name": "r", "out": str(out), "rounds": 5, **given})


def state_of(number: int) -> ServerState[Any]:
    weights = np.full(4, number, np.float32)
    return ServerState(number, weights, {"n.count": np.array(number)}, None)


def full(*_: Any) -> None:
    raise OSError(ENOSPC, "No space left on device")


def played(out: Path, rounds: int, **flat: Any) -> RunDir:
    folder = RunDir.open(config_in(out, **flat))
    for number in range(1, rounds + 1):
        folder.save_state(state_of(number))
        folder.save_record(RoundRecord(number, 0.1, ["0"], ["0"]))
    return folder


def test_the_exact_config_is_written_and_can_be_read_back(tmp_path: Path) -> None:
    config = config_in(tmp_path, **{"train.lr": 0.25, "fedpcd.tau": 0.5})
    folder = RunDir.open(config)
    text = (folder.path / CONFIG_FILE).read_text()
    where = {"name": config.name, "out": config.out}  # not in the file: it can be given to another
    assert parse({**flatten(tomllib.loads(text)), **where}) == config
    assert not {"name", "out", "resume"} & flatten(tomllib.loads(text)).keys()


def test_nested_and_flatten_are_each_others_inverse() -> None:
    flat = RunConfig().to_flat()
    assert flatten(nested(flat)) == flat


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    folder = played(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in folder.path.glob("*.*")}
    with pytest.raises(ConfigError, match="holds a run already"):
        RunDir.open(config_in(tmp_path, **{"train.lr": 0.5}))
    assert {path.name: path.read_bytes() for path in folder.path.glob("*.*")} == before


def test_a_run_without_a_name_is_called_after_its_method(tmp_path: Path) -> None:
    folder = RunDir.open(config_in(tmp_path, name=""))
    assert folder.path.name.startswith("fedavg-2")


def test_an_unwritable_directory_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunDir.open(config_in(tmp_path))


def test_a_full_disk_leaves_the_config_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (played(tmp_path, 2).path / CONFIG_FILE).read_bytes()
    going_on = RunDir.open(config_in(tmp_path, resume=True, rounds=6))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(ConfigError, match="cannot be written"):
            RunDir.open(config_in(tmp_path / "new"))
        with pytest.raises(ConfigError, match="cannot be written"):
            going_on.restore(LAYOUT)
    assert (going_on.path / CONFIG_FILE).read_bytes() == before
    assert list((tmp_path / "new" / "r").iterdir()) == []


@pytest.mark.parametrize(
    ("every", "rounds", "kept"), [(2, 5, [4, 5]), (1, 3, [2, 3]), (5, 5, [5]), (0, 5, [])]
)
def test_checkpoints_come_every_so_often_and_at_the_end(
    tmp_path: Path, every: int, rounds: int, kept: list[int]
) -> None:
    folder = played(tmp_path, rounds, **{"server.checkpoint-every": every})
    names = sorted(path.name for path in (folder.path / CHECKPOINTS).glob("*"))
    assert names == [f"round-{number:06d}.ckpt" for number in kept]


def test_a_resume_goes_on_from_the_newest_checkpoint_and_forgets_later_rounds(
    tmp_path: Path,
) -> None:
    played(tmp_path, 3)
    folder = RunDir.open(config_in(tmp_path, resume=True))
    state, warnings = folder.restore(LAYOUT)
    assert warnings == []
    assert_same(state, state_of(2))
    assert [record.round for record in read_records(folder.path)] == [1, 2]


def test_a_resume_before_the_first_checkpoint_starts_over(tmp_path: Path) -> None:
    played(tmp_path, 1)
    folder = RunDir.open(config_in(tmp_path, resume=True))
    assert folder.restore(LAYOUT) == (None, [])
    assert read_records(folder.path) == []


def test_a_resume_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run in .* to resume"):
        RunDir.open(config_in(tmp_path, resume=True))
    assert list(tmp_path.iterdir()) == []


def test_a_resume_of_a_run_that_was_killed_before_its_first_round_is_a_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "r").mkdir()
    folder = RunDir.open(config_in(tmp_path, resume=True))
    assert folder.restore(LAYOUT) == (None, [])
    assert (folder.path / CONFIG_FILE).exists()


def test_a_run_without_resume_ignores_checkpoints(tmp_path: Path) -> None:
    folder = played(tmp_path, 0)
    folder.save_state(state_of(2))
    assert folder.restore(LAYOUT) == (None, [])


# A public report of this bug: https://github.com/flwrlabs/flower/issues/599
@pytest.mark.parametrize(
    "change", [{"method": "fedpcd"}, {"train.lr": 0.5}, {"seed": 2}, {"data.alpha": 0.7}]
)
def test_a_resume_with_other_settings_is_refused_and_leaves_the_run_as_it_was(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = played(tmp_path, 3)
    config, records = (folder.path / name for name in (CONFIG_FILE, RECORDS))
    folder.finish(state_of(2), LAYOUT, seconds=1.0)
    before = config.read_bytes(), records.read_bytes(), read_outcome(folder.path)
    key = next(iter(change))
    with pytest.raises(CheckpointError, match=f"another config .*{key} was .*, is "):
        RunDir.open(config_in(tmp_path, resume=True, **change))
    assert (config.read_bytes(), records.read_bytes(), read_outcome(folder.path)) == before


def test_a_run_of_a_version_that_lacked_a_setting_goes_on_with_its_default_alone(
    tmp_path: Path,
) -> None:
    folder = played(tmp_path, 3)
    config = folder.path / CONFIG_FILE
    config.write_text(config.read_text().replace('precision = "float32"\n', ""))
    with pytest.raises(CheckpointError, match=r"train\.precision was 'float32', is 'bfloat16'"):
        RunDir.open(config_in(tmp_path, resume=True, **{"train.precision": "bfloat16"}))
    assert "precision" not in config.read_text()
    state, _ = RunDir.open(config_in(tmp_path, resume=True)).restore(LAYOUT)
    assert_same(state, state_of(2))


@pytest.mark.parametrize(("is_lost", "said"), [(False, "another version"), (True, "lost")])
def test_a_refusal_that_can_name_no_key_says_what_else_it_may_be(
    tmp_path: Path, is_lost: bool, said: str
) -> None:
    folder = played(tmp_path, 3)
    save(folder.path / CHECKPOINTS, state_of(3), fingerprint="f", keep=2)
    if is_lost:
        (folder.path / CONFIG_FILE).unlink()
    with pytest.raises(CheckpointError, match=f"another config .*{said}"):
        RunDir.open(config_in(tmp_path, resume=True))


def test_a_resume_for_fewer_rounds_than_were_done_is_refused(tmp_path: Path) -> None:
    played(tmp_path, 5)
    with pytest.raises(ConfigError, match="done 5 rounds already, and rounds is 4; set"):
        RunDir.open(config_in(tmp_path, resume=True, rounds=4))


def test_a_resume_without_a_readable_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = played(tmp_path, 3)
    for path in (folder.path / CHECKPOINTS).iterdir():
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        RunDir.open(config_in(tmp_path, resume=True))


def test_where_a_resume_goes_on_and_whether_it_has_anything_to_do(tmp_path: Path) -> None:
    folder = played(tmp_path, 5)
    assert folder.start == (0, [])
    assert not folder.is_complete
    going_on = RunDir.claim(config_in(tmp_path, resume=True))
    assert going_on.start == (5, [])
    assert not going_on.is_complete  # the final model is not written yet
    folder.finish(state_of(5), LAYOUT, seconds=1.0)
    assert going_on.is_complete
    assert not RunDir.claim(config_in(tmp_path, resume=True, rounds=6)).is_complete


def test_a_resume_with_other_classes_is_refused(tmp_path: Path) -> None:
    played(tmp_path, 3)
    folder = RunDir.open(config_in(tmp_path, resume=True))
    with pytest.raises(CheckpointError, match="number of classes"):
        folder.restore(layout_of_size(5, LAYOUT.buffers))


@pytest.mark.parametrize("rounds", [0, 1])
def test_another_config_is_refused_before_the_first_checkpoint_too(
    tmp_path: Path, rounds: int
) -> None:
    before = (played(tmp_path, rounds).path / CONFIG_FILE).read_bytes()
    with pytest.raises(CheckpointError, match=r"train\.lr was 0\.1, is 0\.3"):
        RunDir.open(config_in(tmp_path, resume=True, **{"train.lr": 0.3}))
    RunDir.open(config_in(tmp_path, resume=True, rounds=9, **{"fedpcd.tau": 0.5}))
    (tmp_path / "r" / CONFIG_FILE).unlink()
    RunDir.open(config_in(tmp_path, resume=True, **{"train.lr": 0.3}))  # nobody can tell
    assert b"lr = 0.1" in before


def test_a_full_disk_does_not_end_a_run_that_writes_its_memory_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.open", full)
        write_memory_note(tmp_path, "73 MB")
    assert read_memory_note(tmp_path) == ""
    write_memory_note(tmp_path, "73 MB")
    assert read_memory_note(tmp_path) == "73 MB"
    (tmp_path / MEMORY).write_bytes(b"\xff\x1b[31m 73\nMB\n")
    assert read_memory_note(tmp_path) == "\ufffd [31m 73 MB"


def test_a_resume_may_change_names_places_and_the_number_of_rounds(tmp_path: Path) -> None:
    played(tmp_path, 3)
    longer = {"rounds": 50, "train.device": "cpu", "eval-every": 1, "data.root": "/elsewhere"}
    folder = RunDir.open(config_in(tmp_path, resume=True, **longer))
    state, _ = folder.restore(LAYOUT)
    assert state is not None
    assert "rounds = 50" in (folder.path / CONFIG_FILE).read_text()


def test_a_run_that_kept_no_checkpoint_cannot_be_resumed_by_surprise(tmp_path: Path) -> None:
    none = {"server.checkpoint-every": 0}
    folder = played(tmp_path, 3, **none)
    with pytest.raises(CheckpointError, match="checkpoint-every was 0"):
        RunDir.open(config_in(tmp_path, resume=True, **none)).restore(LAYOUT)
    assert len(read_records(folder.path)) == 3


def test_the_final_model_is_written_by_name(tmp_path: Path) -> None:
    folder = played(tmp_path, 3)
    folder.finish(state_of(3), LAYOUT, seconds=1.5)
    with np.load(folder.path / "weights.npz", allow_pickle=False) as arrays:
        assert set(arrays) == {"features.weight", "classifier.weight", "n.count"}
        assert_same(arrays["classifier.weight"], np.full(1, 3, np.float32))
        assert_same(arrays["n.count"], np.array(3))
    outcome = read_outcome(folder.path)
    assert outcome is not None
    assert (outcome.status, outcome.rounds, outcome.seconds) == ("completed", 3, 1.5)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), "stopped", "stopped by the user"),
        (ConfigError("no such solver"), "failed", "no such solver"),
        (ZeroDivisionError("by zero"), "failed", "ZeroDivisionError: by zero"),
    ],
)
def test_the_outcome_of_an_early_end_is_written_and_a_resume_clears_it(
    tmp_path: Path, error: BaseException, status: str, message: str
) -> None:
    folder = played(tmp_path, 3)
    folder.end_early(error, 3, 2.0)
    outcome = read_outcome(folder.path)
    assert outcome is not None
    assert (outcome.status, outcome.message, outcome.rounds) == (status, message, 3)
    RunDir.open(replace(folder.config, resume=True))
    assert read_outcome(folder.path) is None
