"""The commands `fedkeel sweep` and `fedkeel compare --seeds`, with runs that take no time."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from common.errors import ConfigError
from common.io.files import file_lock
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.outcome import Outcome, write_outcome
from common.runs.records import RoundRecord
from deploy.cli.main import cli
from deploy.sweep import command
from deploy.sweep.jobs import JobSlot, SweepMonitor
from deploy.sweep.jobs import Result as Ended
from deploy.sweep.run_status import RunStatus
from server_app.run_dir.run_dir import RunDir

PLAN = """
name = "mine"
[base]
rounds = 1
train.device = "cpu"
[grid]
method = ["fedavg", "fedpcd"]
seed = [1, 2]
[[variants]]
label = "Plain one"
"""
Type = Callable[..., Result]


def do_at_once(
    todo: Sequence[RunStatus], room: Sequence[JobSlot], engine: str, monitor: SweepMonitor
) -> list[Ended]:
    """What `run_all` does, without processes: a run with seed 13 fails."""
    results = []
    for run_status in todo:
        config = run_status.run.config
        folder = RunDir.open(replace(config, resume=run_status.action == "resume"))
        is_bad = config.seed == 13
        if not is_bad:
            scores = {"0": ClientScore(10, 5 + config.seed, 1.0), "1": ClientScore(10, 7, 1.0)}
            folder.save_record(
                RoundRecord(1, 0.1, ["0"], ["0"], evaluation=Evaluation.of(scores, {}))
            )
            write_outcome(folder.path, Outcome("completed", "1 rounds", 1, 1.0))
        results.append(Ended(run_status, "failed" if is_bad else "completed", "bad luck", 1.0))
        monitor.ended(results[-1])
    return results


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "run_all", do_at_once)
    (tmp_path / "plan.toml").write_text(PLAN)

    def go(*arguments: str) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "200")
            return CliRunner().invoke(cli, arguments)

    return go


def folders(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.is_dir())


def test_runs_are_done_told_and_kept_with_the_plan(typed: Type, tmp_path: Path) -> None:
    said = typed("sweep", "plan.toml")
    assert said.exit_code == 0, said.output
    mine = tmp_path / "runs" / "mine"
    assert folders(mine) == [
        f"{method}-plain-one-seed{seed}" for method in ("fedavg", "fedpcd") for seed in (1, 2)
    ]
    kept = tomllib.loads((mine / "plan.toml").read_text())
    assert kept["runs"]["fedavg-plain-one-seed2"] == "Plain one"
    assert kept["grid"]["seed"] == [1, 2]
    assert "mine: 4 runs, 4 to do" in said.output
    [line] = [line for line in said.output.splitlines() if line.split()[:1] == ["fedpcd"]]
    assert line.split()[1:4] == ["2", "67.50", "%"]  # seeds, the mean of 65 and 70
    assert "65.0-70.0" in said.output
    assert "mlp, 5 clients a round; after round 1" in " ".join(said.output.split())
    assert str(mine) in said.output


def test_a_larger_plan_adds_what_is_missing(typed: Type, tmp_path: Path) -> None:
    assert typed("sweep", "plan.toml").exit_code == 0
    text = PLAN.replace("[1, 2]", "[1, 2, 3]") + '[[variants]]\nlabel = "b"\nfedpcd.tau = 0.1\n'
    (tmp_path / "plan.toml").write_text(text.replace("Plain one", "renamed"))
    said = typed("sweep", "plan.toml")
    assert "9 runs, 4 complete already, 5 to do" in said.output
    mine = folders(tmp_path / "runs" / "mine")
    assert len(mine) == 9
    assert "fedavg-plain-one-seed1" in mine
    assert "fedavg-renamed-seed3" in mine


def test_what_a_cut_removal_left_is_removed(typed: Type, tmp_path: Path) -> None:
    left = tmp_path / "runs" / "mine" / ".removed-1"
    left.mkdir(parents=True)
    (left / "records.jsonl").touch()
    assert typed("sweep", "plan.toml").exit_code == 0
    assert not left.exists()


def test_a_failure_ends_with_1_and_the_reason(typed: Type) -> None:
    said = typed("sweep", "plan.toml", "--set", "seed=13")
    assert said.exit_code == 1
    assert re.search(r"fedavg-plain-one failed: bad luck$", said.output, re.MULTILINE)


def test_place_and_name_are_chosen_on_the_command_line(typed: Type, tmp_path: Path) -> None:
    assert typed("sweep", "plan.toml", "--out", "there", "--name", "n").exit_code == 0
    assert len(folders(tmp_path / "there" / "n")) == 4


def test_the_kept_plan_is_a_plan(typed: Type, tmp_path: Path) -> None:
    typed("sweep", "plan.toml", "--set", "clients=7")
    again = typed("sweep", str(tmp_path / "runs" / "mine" / "plan.toml"))
    assert "4 runs, 4 complete already" in again.output


def test_two_sweeps_in_one_folder_are_refused(typed: Type, tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    with file_lock(tmp_path / "runs" / "mine" / command.LOCK, ConfigError("taken")):
        said = typed("sweep", "plan.toml")
    assert isinstance(said.exception, ConfigError)
    assert "another sweep is at work in" in str(said.exception)
    assert folders(tmp_path / "runs" / "mine") == []


def test_presets_are_listed_with_what_they_are_about(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = command.PRESETS / "fedpcd-history.toml"
    monkeypatch.setattr(command, "PRESETS", tmp_path / "presets")
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / one.name).write_text(one.read_text())
    for arguments in ((), ("--list",), ("plan.toml", "--list")):
        said = typed("sweep", *arguments)
        lines = [" ".join(line.split()) for line in said.output.splitlines()]
        assert "fedpcd-history FedPCD by the rounds that it remembers absent clients 60 8" in lines


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("sweep", "fedpcd-histori"), 'called "fedpcd-histori" (did you mean "fedpcd-history"?)'),
        (("sweep", "plan.toml", "fedpcd-tau", "--name", "x"), "--name is for one plan"),
        (("sweep", "plan.toml", "--name", "a/b"), "--name must be the name of a folder"),
        (("sweep", "plan.toml", "--engine", "superlink"), 'no engine "superlink"'),
        (("sweep", "plan.toml", "copy.toml"), 'two of these plans are called "mine"'),
        (("sweep", "plan.toml", "--set", "train.device=cuda"), "this machine has none"),
        (("compare", "fedavg", "--seeds", "1", "--workers", "2"), "it is --jobs"),
        (("compare", "fedavg", "--jobs", "2"), "--jobs is for --seeds and --vary"),
        (("compare", "fedavg", "--vary", "seed"), "takes KEY=VALUE,VALUE"),
        (("compare", "fedavg", "--vary", "method=afl"), "method is given values twice"),
        (("compare", "fedavg", "--seeds", "1", "--vary", "seed=2"), "seed is given values twice"),
        (
            ("compare", "afl", "--vary", "rounds=1", "--vary", "rounds=2"),
            "rounds is given values twice",
        ),
        (("compare", "fedavg", "--seeds", "1,b"), "seed must be a whole number"),
        (("compare", "fedavg", "--seeds", "1", "--resume"), "--resume needs the --name"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_made(
    arguments: Sequence[str], sentence: str, typed: Type, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "copy.toml").write_text(PLAN)
    said = typed(*arguments)
    told = f"{said.output} {said.exception}"
    assert said.exit_code != 0
    assert sentence in " ".join(re.sub(r"[│╭╮╰╯─]", " ", told).split())
    assert not (tmp_path / "runs").exists()


def test_compare_over_seeds_and_settings_is_a_sweep(typed: Type, tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('name = "from-file"\nrounds = 1\n[train]\ndevice = "cpu"\n')
    flags = ("--config", "base.toml", "--seeds", "1,2", "--vary", "fedpcd.tau=0.01,0.02")
    said = typed("compare", "fedavg", "fedpcd", *flags, "--vary", "clients=5,6")
    assert said.exit_code == 0, said.output
    names = folders(tmp_path / "runs" / "from-file")
    assert len(names) == 2 * 2 * (1 + 2)
    assert "fedavg-clients5-seed1" in names
    assert "fedpcd-tau0.02-clients6-seed2" in names
    again = typed("compare", "fedavg", "fedpcd", *flags, "--vary", "clients=5,6")
    assert "12 runs, 12 complete already" in again.output
