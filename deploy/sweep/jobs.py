"""Runs as processes: as many at once as the machine has room for, and none outlives us."""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import tomli_w

from common.config import RunConfig, nested
from common.data.sources import data_root
from common.errors import ConfigError, DeployError
from common.io.files import atomic_write
from common.io.text import single_line
from common.parallel import usable_cores
from common.runs.json_file import RecordError
from common.runs.outcome import clear_outcome, read_outcome
from common.runs.records import CONFIG_FILE, read_records
from deploy.sweep.run_status import RunStatus, remove_checkpoints, remove_unfinished_run
from deploy.system.flower_env import child_env
from deploy.system.process_group import ProcessGroup
from deploy.system.signals import stop_signals_ignored

WANTED = "wanted.toml"  # the config that the sweep gave to the run
POLL_SECONDS = 0.1
OUTPUT = "output.log"  # what its process printed
PATIENCE_SECONDS = 10.0  # that a run gets to end in order
GPUS = "CUDA_VISIBLE_DEVICES"
LAST_BYTES = 4096


@dataclass(frozen=True)
class JobSlot:
    """Room for one run at a time.

    Attributes:
        workers: number of clients that train at a time.
        env: environment variables that are added for its processes.
    """

    workers: int
    env: Mapping[str, str]


def job_slots(configs: Sequence[RunConfig], jobs: int) -> list[JobSlot]:
    """Return room for runs: one a core, or one a GPU where there are some that may be used.

    Args:
        configs: configs of the runs. If all train on the CPU, torch is not loaded.
        jobs: number of runs at a time. 0 means as many as fit.
    """
    gpus = [] if all(config.train.device == "cpu" for config in configs) else _gpus()
    cores = usable_cores()
    number = min(jobs or len(gpus) or cores, max(1, len(configs)))
    workers = max(1, cores // number)
    return [
        JobSlot(workers, {GPUS: gpus[index % len(gpus)]} if gpus else {}) for index in range(number)
    ]


def _gpus() -> list[str]:
    """Return the names under which a process can be given one GPU each."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    given = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return given[:count] or [str(index) for index in range(count)]


def refuse_a_gpu_that_is_not_there(configs: Sequence[RunConfig]) -> None:
    """Refuse runs that ask for a GPU on a machine without one.

    Raises:
        ConfigError: there is such a run.
    """
    asking = [config for config in configs if config.train.device == "cuda"]
    if asking:
        from deploy.engines.runner import resources  # loads torch

        resources(asking[0], 1, None)


@dataclass(frozen=True)
class Result:
    """How a run of the sweep ended.

    Attributes:
        run_status: the run, and what was to be done about it.
        status: whether it completed.
        message: one line, why it failed.
        seconds: of its process.
    """

    run_status: RunStatus
    status: Literal["completed", "failed"]
    message: str
    seconds: float


class SweepMonitor(Protocol):
    """Observer of a sweep."""

    def look(self, running: Sequence[RunStatus], waiting: Sequence[RunStatus]) -> None:
        """Show the state. It is called a few times per second."""

    def ended(self, result: Result) -> None:
        """See that a run has ended."""


@dataclass(frozen=True)
class _Running:
    run_status: RunStatus
    slot: JobSlot
    process: "subprocess.Popen[bytes]"
    since: float


def run_all(
    todo: Sequence[RunStatus], room: Sequence[JobSlot], engine: str, monitor: SweepMonitor
) -> list[Result]:
    """Do the runs, each in its own process. A failed run does not stop the others.

    An exception, such as Ctrl-C, ends all processes. If this process is killed, they are killed
    too.

    Raises:
        DeployError: no process can be started, or the one was killed that takes the others along.
    """
    waiting, running, results = deque(todo), dict[int, _Running](), list[Result]()
    group = ProcessGroup()
    try:
        while waiting or running:
            for number, slot in enumerate(room):
                if waiting and number not in running:
                    run_status = waiting.popleft()
                    try:
                        running[number] = _start(group, run_status, slot, engine)
                    except (ConfigError, OSError) as error:
                        results.append(Result(run_status, "failed", _line(error), 0.0))
                        monitor.ended(results[-1])
            monitor.look([one.run_status for one in running.values()], list(waiting))
            if not group.has_leader():
                raise DeployError(
                    "somebody killed the process that ends the runs together with this one; give "
                    "the command again to go on"
                )
            time.sleep(POLL_SECONDS)
            for number, one in list(running.items()):
                if one.process.poll() is not None:
                    results.append(_result(running.pop(number)))
                    monitor.ended(results[-1])
    finally:
        with stop_signals_ignored():
            left = [one.process for one in running.values()]
            group.end(*left, timeout=PATIENCE_SECONDS)
    return results


def _start(group: ProcessGroup, run_status: RunStatus, slot: JobSlot, engine: str) -> _Running:
    """Start a run's process.

    Raises:
        ConfigError, OSError: its folder cannot be used.
        DeployError: it cannot be started.
    """
    if run_status.action == "start over":
        remove_unfinished_run(run_status)
    folder, config = run_status.folder, run_status.run.config
    folder.mkdir(parents=True, exist_ok=True)
    clear_outcome(folder)  # so that how an earlier part ended is not taken for the end of this one
    wanted = {k: v for k, v in config.to_flat().items() if k not in ("name", "resume")}
    with atomic_write(folder / WANTED) as file:
        tomli_w.dump(nested(wanted), file)
    command = [
        # Not from the current folder: the user's own packages may have the names of ours.
        *(sys.executable, "-P", "-m", "deploy.cli.main", "run", "--config", str(folder / WANTED)),
        *("--name", config.name, "--engine", engine, "--workers", str(slot.workers)),
        *(["--resume"] if run_status.action == "resume" else []),
    ]
    environment = {
        **os.environ,
        **child_env(),
        **slot.env,
        "FEDKEEL_DATA": str(data_root(None).absolute()),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    with (folder / OUTPUT).open("ab") as log:
        process = group.start(command, cwd=Path.cwd(), env=environment, out=log)
    return _Running(run_status, slot, process, time.monotonic())


def _result(one: _Running) -> Result:
    seconds = time.monotonic() - one.since
    why = (
        _why(one.run_status.folder, one.process)
        if one.process.returncode
        else _lacks(one.run_status)
    )
    if why:
        return Result(one.run_status, "failed", why, seconds)
    remove_checkpoints(one.run_status)
    return Result(one.run_status, "completed", "", seconds)


def _lacks(run_status: RunStatus) -> str:
    """Return which files of a completed run are missing, in one line, "" for none.

    Where something is missing, it does not count as complete from now on.
    """
    folder, rounds = run_status.folder, run_status.run.config.rounds
    try:
        there = len(read_records(folder))
        lacks = [] if (folder / CONFIG_FILE).is_file() else [f"there is no {CONFIG_FILE}"]
        lacks += [f"records of {there} of its {rounds} rounds are left"] if there < rounds else []
    except RecordError as error:
        lacks = [str(error)]
    if not lacks:
        return ""
    clear_outcome(folder)
    return _line(
        f"it completed, but somebody removed or changed {folder} meanwhile: {', '.join(lacks)}; "
        "remove that folder and give the command again"
    )


def _why(folder: Path, process: "subprocess.Popen[bytes]") -> str:
    """Return why a run failed, in a line: its outcome, or else the last thing it said."""
    try:
        outcome = read_outcome(folder)
    except RecordError as error:
        return _line(error)
    if outcome is not None and outcome.status != "completed":
        return _line(outcome.message)
    code = process.returncode
    how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
    with (folder / OUTPUT).open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = log.read().decode(errors="replace").split("\n")
    said = [line for line in lines if line.strip()]
    return _line(f"its process {how}" + (f": {said[-1].strip()}" if said else ""))


def _line(said: object) -> str:
    return single_line(" ".join(str(said).split()))
