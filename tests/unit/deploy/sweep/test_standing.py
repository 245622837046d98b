"""What a sweep makes of what lies in its folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import ConfigError
from deploy.order import only_one
from deploy.sweep.plan import Plan
from deploy.sweep.runs import PlannedRun, runs_of
from deploy.sweep.standing import Standing, clear, standings
from server_app.folder import RunFolder
from server_app.records import Outcome, RoundRecord, write_outcome
from server_app.state import ServerState

ROUND = RoundRecord(round=1, lr=0.1, cohort=["0"], replied=["0"])


def planned(**base: Any) -> list[PlannedRun]:
    settings = {"method": "fedavg", "rounds": 2, "server.checkpoint-every": 1}
    return runs_of(Plan("x", base={**settings, **base}, grid={"seed": [1]}))


def begun(folder: Path, *, name: str = "fedavg-seed1", **base: Any) -> RunFolder:
    """A run that has begun and done nothing yet."""
    [run] = planned(**base)
    return RunFolder.open(PlannedRun(name, "", run.config).below(folder).config)


def look(folder: Path, **base: Any) -> Standing:
    [found] = standings(folder, planned(**base))
    return found


def test_an_empty_folder_is_started_in(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert (found.to, found.folder) == ("start", tmp_path / "fedavg-seed1")
    begun(tmp_path)
    assert look(tmp_path).to == "start"


def test_a_run_that_was_cut_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.note(ROUND)
    assert look(tmp_path).to == "start over"
    folder.keep(ServerState(1, np.ones(1, np.float32), {}, None))
    found = look(tmp_path)
    assert (found.to, found.done) == ("resume", 1)
    write_outcome(folder.path, Outcome("stopped", "by the user", 1, 1.0))
    assert look(tmp_path).to == "resume"


def test_a_complete_run_is_left_alone_whatever_its_checkpoints(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.note(ROUND)
    write_outcome(folder.path, Outcome("completed", "2 rounds", 2, 1.0))
    assert look(tmp_path).to == "nothing"


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"rounds": 3}, "rounds was 2, is 3"),
        ({"eval-every": 1}, "eval-every was 5, is 1"),
        ({"diagnostics.every": 1}, "diagnostics.every was 0, is 1"),
        ({"train.lr": 0.3}, "train.lr was 0.1, is 0.3"),
        ({"fedavg.uniform": True}, "fedavg.uniform was False, is True"),
    ],
)
def test_another_run_in_the_folder_is_refused_with_the_difference(
    other: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    folder = begun(tmp_path)
    write_outcome(folder.path, Outcome("completed", "2 rounds", 2, 1.0))
    with pytest.raises(ConfigError) as caught:
        look(tmp_path, **other)
    assert f"fedavg-seed1: {difference}" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        {"train.device": "cpu"},
        {"server.round-timeout": 5.0},
        {"fedpcd.tau": 0.5},
        {"data.root": "x"},
    ],
)
def test_places_and_other_methods_settings_make_no_difference(
    other: dict[str, Any], tmp_path: Path
) -> None:
    write_outcome(begun(tmp_path).path, Outcome("completed", "2 rounds", 2, 1.0))
    assert look(tmp_path, **other).to == "nothing"


def test_a_run_that_a_smaller_plan_named_otherwise_is_found(tmp_path: Path) -> None:
    write_outcome(begun(tmp_path, name="before").path, Outcome("completed", "2 rounds", 2, 1.0))
    found = look(tmp_path)
    assert (found.to, found.run.name, found.folder.name) == ("nothing", "before", "before")


def test_records_without_a_config_are_not_touched(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.note(ROUND)
    (folder.path / "config.toml").unlink()
    with pytest.raises(ConfigError, match=r"without its config\.toml"):
        look(tmp_path)


def test_nothing_is_removed_while_another_process_is_at_work_there(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.note(ROUND)
    found = look(tmp_path)
    with only_one(folder.path), pytest.raises(ConfigError, match="another process"):
        clear(found)
    assert folder.path.exists()
    clear(found)
    assert not folder.path.exists()
