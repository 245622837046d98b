"""Start a run, show it, end it in order, and say how it went."""

import time
from pathlib import Path

from rich.console import Console

from common.config import RunConfig
from common.errors import ConfigError
from deploy.engines import Engine, Job, Resources
from deploy.engines.base import LOG
from deploy.environment import usable_cores
from deploy.progress import follow
from server_app.records import (
    RECORDS,
    Outcome,
    clear_outcome,
    read_outcome,
    read_records,
    write_outcome,
)

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 30.0  # with an engine whose run is over


def resources(config: RunConfig, workers: int, client_gpus: float | None) -> Resources:
    """Return what a run may use; 0 workers and no share mean as many as fit.

    Raises:
        ConfigError: a GPU is asked for and there is none.
    """
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


def folder_of(config: RunConfig) -> Path:
    """Return the folder of a run.

    Raises:
        ConfigError: it holds a run already, and this one does not resume it.
    """
    folder = Path(config.out) / config.name
    if (folder / RECORDS).exists() and not config.resume:
        raise ConfigError(
            f"{folder} holds a run already; give this one another --name, or go on with --resume"
        )
    return folder


def carry_out(
    config: RunConfig, engine: Engine, given: Resources, console: Console, label: str
) -> Outcome:
    """Run to the end and return how it ended; Ctrl-C ends everything and passes on.

    Raises:
        ConfigError: the run's folder is taken, or cannot be written to.
    """
    folder = folder_of(config)
    begin = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).touch()
        clear_outcome(folder)
    except OSError as error:
        raise ConfigError(f"the run cannot be written to {folder}: {error}") from error
    job = engine(config, given)
    try:
        outcome = follow(folder, label, config.rounds, POLL_SECONDS, job.is_alive, console)
        _let_down(job)
    except BaseException as error:
        job.stop()
        if read_outcome(folder) is None:
            _note(folder, error, time.monotonic() - begin)
        raise
    if outcome is None:
        rounds = _rounds(folder)
        outcome = Outcome("failed", job.why_it_ended(), rounds, time.monotonic() - begin)
        write_outcome(folder, outcome)
    return outcome


def _let_down(job: Job) -> None:
    """Wait for the engine, which is down a moment after the run; clients may hang in it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while job.is_alive():
        if time.monotonic() >= deadline:
            job.stop()
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
