"""Starting a run, and ending it in order whatever happens."""

import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from common.config import RunConfig, parse
from common.errors import ConfigError
from common.runs.json_file import RecordError
from common.runs.memory_note import read_memory_note, write_memory_note
from common.runs.outcome import Outcome, read_outcome, write_outcome
from common.runs.records import RECORDS, Recorder, RoundRecord
from deploy.engines import Resources, runner
from deploy.engines.runner import resources, run_experiment
from deploy.system.signals import run_dir_lock, stop_signals_ignored
from server_app.run_dir.run_dir import RunDir
from server_app.state.server_state import ServerState

ROUND = RoundRecord(round=1, lr=0.1, cohort=["0"], replied=["0"])
DONE = Outcome("completed", "1 rounds", 1, 0.5)


@dataclass
class Job:
    """A job whose life is a list of things that happen, one at each look at it."""

    life: list[Callable[[], None]] = field(default_factory=list)
    stopped: bool = False
    config: RunConfig | None = None

    def __call__(self, config: RunConfig, given: Resources) -> "Job":
        self.config = config
        return self

    def is_alive(self) -> bool:
        if self.stopped or not self.life:
            return False
        self.life.pop(0)()
        return not self.stopped

    def stop(self) -> None:
        self.stopped = True

    def why_it_ended(self) -> str:
        return "the engine fell over"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.0)
    return parse({"out": str(tmp_path), "name": "run", "rounds": 1})


@pytest.fixture
def folder(config: RunConfig) -> Path:
    return Path(config.out) / config.name


def go(config: RunConfig, job: Job) -> Outcome:
    return run_experiment(config, job, Resources(1), Console(file=io.StringIO()), "fedavg")


def raising(error: BaseException) -> Callable[[], None]:
    def fall() -> None:
        raise error

    return fall


def test_the_outcome_is_what_the_run_wrote(config: RunConfig, folder: Path) -> None:
    assert go(config, Job([lambda: write_outcome(folder, DONE)])) == DONE


def test_an_engine_that_dies_without_a_word_is_a_failed_run(
    config: RunConfig, folder: Path
) -> None:
    outcome = go(config, Job([lambda: Recorder(folder / RECORDS).append(ROUND)]))
    assert (outcome.status, outcome.message) == ("failed", "the engine fell over")
    assert outcome.rounds == 1
    assert read_outcome(folder) == outcome


def test_ctrl_c_stops_the_job_and_is_told_in_the_outcome(config: RunConfig, folder: Path) -> None:
    job = Job([lambda: Recorder(folder / RECORDS).append(ROUND), raising(KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        go(config, job)
    assert job.stopped
    outcome = read_outcome(folder)
    assert outcome is not None
    assert (outcome.status, outcome.rounds) == ("stopped", 1)


def test_ctrl_c_after_the_end_does_not_undo_it(config: RunConfig, folder: Path) -> None:
    job = Job([lambda: write_outcome(folder, DONE), raising(KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        go(config, job)
    assert job.stopped
    assert read_outcome(folder) == DONE


def test_records_that_cannot_be_read_stop_the_job_and_are_not_blamed_on_the_user(
    config: RunConfig, folder: Path
) -> None:
    job = Job([lambda: None, lambda: write_text(folder / RECORDS, "nonsense\n")])
    with pytest.raises(RecordError, match="line 1"):
        go(config, job)
    assert job.stopped
    outcome = read_outcome(folder)
    assert outcome is not None
    assert outcome.status == "failed"
    assert "line 1" in outcome.message


PATIENCE = {"completed": "LAST_WORDS_SECONDS", "failed": "PATIENCE_SECONDS"}


@pytest.mark.parametrize("outcome", [DONE, Outcome("failed", "no", 0, 0.5)])
def test_an_engine_that_hangs_after_the_run_is_ended(
    outcome: Outcome, config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status, patience in PATIENCE.items():
        monkeypatch.setattr(runner, patience, 0.05 if status == outcome.status else None)
    job = Job([lambda: write_outcome(folder, outcome), *[lambda: None] * 1_000_000])
    assert go(config, job) == outcome
    assert job.stopped


def test_a_folder_that_holds_a_run_is_left_alone(config: RunConfig, folder: Path) -> None:
    Recorder(folder / RECORDS).append(ROUND)
    write_outcome(folder, DONE)
    job = Job()
    with pytest.raises(ConfigError, match="holds a run already; give this run another name"):
        go(config, job)
    assert job.config is None
    assert read_outcome(folder) == DONE


def test_one_folder_is_for_one_command_at_a_time(config: RunConfig, folder: Path) -> None:
    folder.mkdir(parents=True)
    job = Job([lambda: write_outcome(folder, DONE)])
    with run_dir_lock(folder), pytest.raises(ConfigError, match="another process is running"):
        go(config, job)
    assert job.config is None
    assert go(config, job) == DONE


def test_a_complete_run_is_not_started_again(config: RunConfig, folder: Path) -> None:
    config = replace(config, rounds=1)
    RunDir.open(config).save_state(ServerState(1, np.ones(1, np.float32), {}, None))
    write_outcome(folder, DONE)
    job = Job()
    assert go(replace(config, resume=True), job).status == "completed"
    assert job.config is None


def test_what_an_earlier_part_of_the_run_needed_of_memory_is_forgotten(
    config: RunConfig, folder: Path
) -> None:
    write_memory_note(folder, "9 MB")
    go(config, Job([lambda: write_outcome(folder, DONE)]))
    assert read_memory_note(folder) == ""


def test_a_failed_start_does_not_take_the_name(config: RunConfig, folder: Path) -> None:
    assert go(config, Job()).status == "failed"
    assert go(config, Job([lambda: write_outcome(folder, DONE)])) == DONE


def test_the_last_outcome_of_a_run_that_goes_on_is_forgotten_first(
    config: RunConfig, folder: Path
) -> None:
    write_outcome(folder, DONE)
    assert go(replace(config, rounds=2, resume=True), Job()).status == "failed"


def test_a_place_that_cannot_be_written_to_is_named(config: RunConfig, tmp_path: Path) -> None:
    write_text(tmp_path / "file", "")
    job = Job()
    for out in (tmp_path / "file", Path("/proc/nowhere")):
        with pytest.raises(ConfigError, match=f"cannot be written to {out}"):
            go(replace(config, out=str(out)), job)
    assert job.config is None


class TestResources:
    """What a run may use."""

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner, "usable_cores", lambda: 8)
        self.gpus(monkeypatch, 0)

    def gpus(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)

    def test_as_many_workers_as_cores_but_no_more_than_clients(self) -> None:
        assert resources(parse({"clients": 20}), 0, None) == Resources(8)
        assert resources(parse({"clients": 3}), 0, None) == Resources(3)
        assert resources(parse({"clients": 20}), 5, None) == Resources(5)

    @pytest.mark.parametrize(
        ("settings", "share", "knob"),
        [
            ({"train.device": "cuda"}, None, "train.device=cuda"),
            ({}, 1.0, "--client-gpus 1"),
            ({"train.device": "cpu"}, 0.5, "--client-gpus 0.5"),
        ],
    )
    def test_a_gpu_that_is_not_there_is_refused_with_the_knob(
        self, settings: dict[str, str], share: float | None, knob: str
    ) -> None:
        """A GPU was silently not used in https://github.com/flwrlabs/flower/issues/6220."""
        with pytest.raises(ConfigError, match=f"{knob} asks for a GPU, but this machine has none"):
            resources(parse(settings), 0, share)

    def test_gpus_are_shared_between_the_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus(monkeypatch, 2)
        assert resources(parse({}), 4, None) == Resources(4, 0.5)
        assert resources(parse({"train.device": "cpu"}), 4, None) == Resources(4)

    def test_no_more_workers_than_gpu_shares(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus(monkeypatch, 1)
        assert resources(parse({}), 0, 0.5) == Resources(2, 0.5)
        assert resources(parse({}), 0, 0.1) == Resources(8, 0.1)


def write_text(path: Path, text: str) -> None:
    """Write a file into a folder that may be missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_second_signal_does_not_interrupt_the_clearing_away() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stop_signals_ignored():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
