"""Start a run, show it, end it in order, and say how it went."""

import time
from contextlib import suppress
from math import inf
from pathlib import Path

from rich.console import Console

from common.config import RunConfig
from common.errors import ConfigError
from common.io.files import private_files
from common.parallel import usable_cores
from common.runs.json_file import RecordError
from common.runs.live_state import clear_live_state
from common.runs.memory_note import clear_memory_note
from common.runs.outcome import Outcome, clear_outcome, read_outcome, write_outcome
from common.runs.records import read_records
from deploy.engines import Engine, Job, Resources
from deploy.engines.progress import follow
from deploy.system.signals import run_dir_lock, stop_signals_ignored
from server_app.run_dir.run_dir import LOG, RunDir

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 30.0  # with an engine whose run ended early: it has more to say
LAST_WORDS_SECONDS = 0.5  # of an engine whose run is complete


def resources(config: RunConfig, workers: int, client_gpus: float | None) -> Resources:
    """Return the resources of a run. 0 workers and no share mean as many as fit.

    Raises:
        ConfigError: a number is negative or not finite, or a GPU is asked for and there is none.
    """
    if workers < 0:
        raise ConfigError(f"workers must be at least 0, not {workers}")
    if client_gpus is not None and not 0 <= client_gpus < inf:
        raise ConfigError(f"client-gpus must be a finite number of at least 0, not {client_gpus}")
    workers = workers or min(usable_cores(), config.clients)
    wants_gpu = config.train.device == "cuda" or bool(client_gpus)
    if config.train.device == "cpu" and not client_gpus:
        return Resources(workers)
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wants_gpu and not count:
        from client_app.device import why_no_gpu

        knob = f"--client-gpus {client_gpus:g}" if client_gpus else "train.device=cuda"
        raise ConfigError(
            f"{knob} asks for a GPU, but this machine has none that torch can use: {why_no_gpu()}; "
            "leave it out to train on the CPU"
        )
    if client_gpus:
        return Resources(max(1, min(workers, int(count / client_gpus))), client_gpus)
    return Resources(workers, count / workers)


def run_experiment(
    config: RunConfig, engine: Engine, given: Resources, console: Console, label: str
) -> Outcome:
    """Run to the end and return the outcome. Ctrl-C ends all processes and is raised again.

    Other users of this machine cannot read the run directory, see `server.group-access`.

    Raises:
        ConfigError, CheckpointError: the run cannot be in its folder, or is there already.
    """
    with private_files(group=config.server.group_access):
        return _run_experiment(config, engine, given, console, label)


def _run_experiment(
    config: RunConfig, engine: Engine, given: Resources, console: Console, label: str
) -> Outcome:
    claimed = RunDir.claim(config)
    folder, (start, warnings) = claimed.path, claimed.start
    for warning in warnings:
        console.print(warning, markup=False, soft_wrap=True)
    if claimed.is_complete:
        console.print(f"{label}: complete already, {start} rounds", markup=False)
        return Outcome("completed", f"{start} rounds", start, 0.0)
    if config.resume:
        where = f"going on after round {start}" if start else "no checkpoint yet, starting over"
        console.print(f"{label}: {where}", markup=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).touch()
    except OSError as error:
        raise ConfigError(f"the run cannot be written to {folder}: {error}") from error
    with run_dir_lock(folder):
        clear_outcome(folder)
        clear_live_state(folder)
        clear_memory_note(folder)
        return _watch(config, engine(config, given), folder, console, label, start)


def _watch(
    config: RunConfig, job: Job, folder: Path, console: Console, label: str, start: int
) -> Outcome:
    begin = time.monotonic()
    try:
        outcome = follow(
            folder, label, config.rounds, POLL_SECONDS, job.is_alive, console, after=start
        )
        _let_down(job, outcome)
    except BaseException as error:
        with stop_signals_ignored():
            job.stop()
            if read_outcome(folder) is None:
                _note(folder, error, time.monotonic() - begin)
        raise
    if outcome is None:
        rounds = _rounds(folder)
        outcome = Outcome("failed", job.why_it_ended(), rounds, time.monotonic() - begin)
        with suppress(RecordError):  # the same trouble may have ended the run
            write_outcome(folder, outcome)
    return outcome


def _let_down(job: Job, outcome: Outcome | None) -> None:
    """See to it that the engine is down: clients may hang in it, and Ray takes three seconds."""
    complete = outcome is not None and outcome.status == "completed"
    deadline = time.monotonic() + (LAST_WORDS_SECONDS if complete else PATIENCE_SECONDS)
    while job.is_alive():
        if time.monotonic() >= deadline:
            job.stop()
        else:
            time.sleep(POLL_SECONDS)


def _note(folder: Path, error: BaseException, seconds: float) -> None:
    if isinstance(error, KeyboardInterrupt):
        outcome = Outcome("stopped", "stopped by the user", _rounds(folder), seconds)
    else:
        outcome = Outcome("failed", f"{type(error).__name__}: {error}", 0, seconds)
    write_outcome(folder, outcome)


def _rounds(folder: Path) -> int:
    records = read_records(folder)
    return records[-1].round if records else 0
