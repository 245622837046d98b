"""What a sweep makes of what lies in its folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import ConfigError
from common.runs.outcome import Outcome, write_outcome
from common.runs.records import RoundRecord
from deploy.report.run_data import discover
from deploy.sweep.plan import Plan, Variant
from deploy.sweep.run_status import RunStatus, remove_leftovers, remove_unfinished_run, run_statuses
from deploy.sweep.runs import PlannedRun, runs_of
from deploy.system.signals import run_dir_lock
from server_app.run_dir.run_dir import RunDir
from server_app.state.server_state import ServerState

ROUND = RoundRecord(round=1, lr=0.1, cohort=["0"], replied=["0"])


def planned(**base: Any) -> list[PlannedRun]:
    settings = {"method": "fedavg", "rounds": 2, "server.checkpoint-every": 1}
    return runs_of(Plan("x", base={**settings, **base}, grid={"seed": [1]}))


def begun(folder: Path, *, name: str = "fedavg-seed1", **base: Any) -> RunDir:
    """A run that has begun and done nothing yet."""
    [run] = planned(**base)
    return RunDir.open(PlannedRun(name, "", run.config).below(folder).config)


def look(folder: Path, **base: Any) -> RunStatus:
    [found] = run_statuses(folder, planned(**base))
    return found


def test_an_empty_folder_is_started_in(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert (found.action, found.folder) == ("start", tmp_path / "fedavg-seed1")
    begun(tmp_path)
    assert look(tmp_path).action == "start"


def test_a_run_that_was_cut_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.save_record(ROUND)
    assert look(tmp_path).action == "start over"
    folder.save_state(ServerState(1, np.ones(1, np.float32), {}, None))
    found = look(tmp_path)
    assert (found.action, found.done) == ("resume", 1)
    write_outcome(folder.path, Outcome("stopped", "by the user", 1, 1.0))
    assert look(tmp_path).action == "resume"


def test_a_complete_run_is_left_alone_whatever_its_checkpoints(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.save_record(ROUND)
    write_outcome(folder.path, Outcome("completed", "2 rounds", 2, 1.0))
    assert look(tmp_path).action == "nothing"


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
    assert look(tmp_path, **other).action == "nothing"


def test_a_run_that_a_smaller_plan_named_otherwise_is_found(tmp_path: Path) -> None:
    write_outcome(begun(tmp_path, name="before").path, Outcome("completed", "2 rounds", 2, 1.0))
    found = look(tmp_path)
    assert (found.action, found.run.name, found.folder.name) == ("nothing", "before", "before")


def done(folder: RunDir) -> None:
    write_outcome(folder.path, Outcome("completed", "2 rounds", 2, 1.0))


def at(number: int) -> ServerState[Any]:
    return ServerState(number, np.ones(1, np.float32), {}, None)


def test_a_copy_never_takes_the_place_of_the_run_under_its_own_name(tmp_path: Path) -> None:
    begun(tmp_path, name="backup-before-trying").save_record(ROUND)
    done(begun(tmp_path))
    found = look(tmp_path)
    assert (found.action, found.run.name) == ("nothing", "fedavg-seed1")


def test_of_copies_under_other_names_the_one_that_got_furthest_is_the_run(tmp_path: Path) -> None:
    begun(tmp_path, name="a", rounds=3).save_record(ROUND)
    assert look(tmp_path, rounds=3).action == "start"
    for name, rounds in (("b", 1), ("c", 2), ("d", 1)):
        begun(tmp_path, name=name, rounds=3).save_state(at(rounds))
    found = look(tmp_path, rounds=3)
    assert (found.action, found.run.name, found.done) == ("resume", "c", 2)
    done(begun(tmp_path, name="e", rounds=3))
    found = look(tmp_path, rounds=3)
    assert (found.action, found.run.name) == ("nothing", "e")


@pytest.mark.parametrize("records", [True, False])
def test_a_folder_found_by_its_config_alone_is_left_alone_where_it_has_no_checkpoint(
    records: bool, tmp_path: Path
) -> None:
    folder = begun(tmp_path, name="backup")
    if records:
        folder.save_record(ROUND)
    found = look(tmp_path)
    assert (found.action, found.run.name) == ("start", "fedavg-seed1")


@pytest.mark.parametrize("text", ["", "method = ", "[data]\n", 'rounds = "2"\n'])
def test_a_torn_config_of_a_run_that_did_nothing_yet_is_a_start(text: str, tmp_path: Path) -> None:
    folder = begun(tmp_path)
    (folder.path / "config.toml").write_text(text)
    assert look(tmp_path).action == "start"
    assert begun(tmp_path).path == folder.path  # writes its config again
    assert "rounds = 2" in (folder.path / "config.toml").read_text()


@pytest.mark.parametrize("text", ["", "method = ", None])
@pytest.mark.parametrize("records", [True, False])
def test_what_was_done_under_a_config_that_is_torn_is_not_touched(
    text: str | None, records: bool, tmp_path: Path
) -> None:
    folder = begun(tmp_path)
    if records:
        folder.save_record(ROUND)
    else:
        folder.save_state(at(1))
    config = folder.path / "config.toml"
    config.unlink() if text is None else config.write_text(text)
    what = "missing" if text is None else "torn"
    with pytest.raises(ConfigError, match=rf"config\.toml of fedavg-seed1 is {what}: .*remove"):
        look(tmp_path)


@pytest.mark.parametrize("text", ["", '{"status": "compl', '{"status": "completed"}'])
def test_a_run_whose_outcome_is_torn_has_not_ended(text: str, tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.save_record(ROUND)
    (folder.path / "outcome.json").write_text(text)
    assert look(tmp_path).action == "start over"
    folder.save_state(at(1))
    assert look(tmp_path).action == "resume"


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (
            Plan("x", variants=(Variant("lr-0.1", {"train.lr": 0.1}),)),
            Plan(
                "x",
                variants=(
                    Variant("lr 0.1", {"train.lr": 0.1, "train.momentum": 0.5}),
                    Variant("lr-0.1", {"train.lr": 0.1}),
                ),
            ),
        ),
        (
            Plan("x", variants=(Variant("!", {"rounds": 3}),)),
            Plan("x", variants=(Variant("?", {"rounds": 4}), Variant("!", {"rounds": 3}))),
        ),
        (
            Plan("x", grid={"train.lr": [0.1234567]}),
            Plan("x", grid={"train.lr": [0.1234568, 0.1234567]}),
        ),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_a_new_run_whose_name_another_of_the_plan_has_gets_its_digest(
    small: Plan, large: Plan, complete: bool, tmp_path: Path
) -> None:
    [kept] = run_statuses(tmp_path, runs_of(small))
    folder = RunDir.open(kept.run.config)
    folder.save_record(ROUND)
    if complete:
        done(folder)
    new, old = found = run_statuses(tmp_path, runs_of(large))
    assert (new.action, new.run.name) == ("start", f"{kept.run.name}-{new.run.identity[:8]}")
    assert (old.action, old.run.name) == (
        ("nothing", kept.run.name)
        if complete
        else ("start", f"{kept.run.name}-{old.run.identity[:8]}")
    )
    RunDir.open(new.run.config).save_record(ROUND)
    again = run_statuses(tmp_path, runs_of(large))
    assert [one.run.name for one in again] == [one.run.name for one in found]
    assert again[0].action == "start over"


def test_a_removal_that_is_cut_leaves_no_run_and_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(tmp_path)
    folder.save_record(ROUND)
    found = look(tmp_path)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_unfinished_run(found)
    [left] = tmp_path.iterdir()
    assert (left / "records.jsonl").exists()
    assert look(tmp_path).action == "start"
    with pytest.raises(ConfigError, match="there is no run in"):
        discover([tmp_path])
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_removed_while_another_process_is_at_work_there(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.save_record(ROUND)
    found = look(tmp_path)
    with run_dir_lock(folder.path), pytest.raises(ConfigError, match="another process"):
        remove_unfinished_run(found)
    assert folder.path.exists()
    remove_unfinished_run(found)
    assert not folder.path.exists()
