"""Start a run, show it, end it in order, and say how it went."""

import time
from pathlib import Path

from rich.console import Console

from common.config import RunConfig
from common.errors import ConfigError
from deploy.engines import Engine, Resources
from deploy.environment import usable_cores
from deploy.progress import follow
from server_app.records import RECORDS, Outcome, clear_outcome, read_outcome, write_outcome

POLL_SECONDS = 0.2


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


def carry_out(
    config: RunConfig, engine: Engine, given: Resources, console: Console, label: str
) -> Outcome:
    """Run to the end and return how it ended; Ctrl-C ends everything and passes on."""
    folder = Path(config.out) / config.name
    if (folder / RECORDS).exists() and not config.resume:
        raise ConfigError(
            f"{folder} holds a run already; give this one another --name, or go on with --resume"
        )
    clear_outcome(folder)
    begin = time.monotonic()
    job = engine(config, given)
    try:
        outcome = follow(folder, label, config.rounds, POLL_SECONDS, job.is_alive, console)
        while job.is_alive():  # the outcome is written a moment before the engine is down
            time.sleep(POLL_SECONDS)
    except BaseException:
        job.stop()
        if read_outcome(folder) is None and folder.exists():
            seconds = time.monotonic() - begin
            write_outcome(folder, Outcome("stopped", "stopped by the user", 0, seconds))
        raise
    if outcome is None:
        outcome = Outcome("failed", job.why_it_ended(), 0, time.monotonic() - begin)
        folder.mkdir(parents=True, exist_ok=True)
        write_outcome(folder, outcome)
    return outcome
