"""One run of a program that trains: seconds of its rounds, CPU of its processes, its start."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from common.errors import FedError

LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 900.0
SAID = "said.txt"
LAST_LINES = 15


class BenchError(FedError):
    """A program that is measured did not do its work, or cannot."""


@dataclass(frozen=True)
class Program:
    """A command that trains, and the file in which it adds a line of JSON at each round's end.

    Attributes:
        argv: the command; it runs in a folder of its own.
        log: the file, relative to that folder.
        read: turns a parsed line into {"seconds": of the round, "accuracy": of the model}, either
            of which may be missing.
        env: added to the environment.
    """

    argv: Sequence[str]
    log: str = "rounds.jsonl"
    read: Callable[[dict[str, Any]], Mapping[str, float]] = dict
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """What a run took.

    Attributes:
        start: seconds from the command to the beginning of the first round.
        wall: seconds of each round.
        cpu: CPU seconds of all its processes in each round but the first.
        accuracy: of the final model.
        others: cores that other processes kept busy meanwhile, from the first round's end on.
    """

    start: float
    wall: list[float]
    cpu: list[float]
    accuracy: float
    others: float

    @property
    def counted_wall(self) -> list[float]:
        """The rounds but the first, in which caches fill, and the last, after which some evaluate.

        `counted_cpu` is of the same.
        """
        return self.wall[1:-1]

    @property
    def counted_cpu(self) -> list[float]:
        """See `counted_wall`."""
        return self.cpu[:-1]


@dataclass(frozen=True)
class _Seen:
    time: float
    cpu: float  # of the program
    busy: float  # of the machine


def measure(program: Program, home: Path, rounds: int) -> Trial:
    """Run a program in the new folder `home` to its end.

    Raises:
        BenchError: it failed, took too long, or wrote other rounds than expected.
    """
    home.mkdir(parents=True)
    log, said = home / program.log, home / SAID
    seen: list[_Seen] = []
    env = {**os.environ, "FLWR_HOME": str(home / "flwr"), **program.env}  # not the user's own
    begin = time.monotonic()
    with said.open("wb") as out:
        process = psutil.Popen(
            program.argv, cwd=home, env=env,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        while process.poll() is None:
            lines = log.read_bytes().count(b"\n") if log.exists() else 0
            if lines > len(seen):
                now = _Seen(time.monotonic(), cpu_seconds(process), busy_seconds())
                seen += [now] * (lines - len(seen))
            if time.monotonic() - begin > PATIENCE_SECONDS:
                raise BenchError(f"{program.argv[0]} was not done in {PATIENCE_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)
    finally:
        _kill(process)
    lines_read = [program.read(json.loads(line)) for line in _lines(log)]
    wall = [line["seconds"] for line in lines_read if "seconds" in line]
    accuracy = [line["accuracy"] for line in lines_read if "accuracy" in line]
    if process.returncode or len(wall) != rounds or len(accuracy) != 1 or len(seen) < rounds:
        raise BenchError(
            f"{' '.join(program.argv[:4])} ... ended with code {process.returncode} after "
            f"{len(wall)} of {rounds} rounds; it said last:\n  {last_lines(said)}"
        )
    cpu = [after.cpu - before.cpu for before, after in pairwise(seen[:rounds])]
    first, last = seen[0], seen[rounds - 1]
    others = (last.busy - first.busy - sum(cpu)) / max(last.time - first.time, LOOK_SECONDS)
    return Trial(first.time - wall[0] - begin, wall, cpu, accuracy[0], max(others, 0.0))


def cpu_seconds(process: psutil.Process) -> float:
    """Return the user and system seconds of a process, its descendants, and those that ended."""
    total = 0.0
    for one in _tree(process):
        with suppress(psutil.Error):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def busy_seconds() -> float:
    """Return the CPU seconds of everything on this machine, with what its host took away."""
    times = psutil.cpu_times()
    waiting = times.idle + getattr(times, "iowait", 0.0)
    inside = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # in user already
    return float(sum(times) - waiting - inside)


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _kill(process: psutil.Popen) -> None:
    alive = _tree(process)
    for one in alive:
        with suppress(psutil.Error):
            one.kill()
    psutil.wait_procs(alive)
    process.wait()


def last_lines(path: Path) -> str:
    """Return the last lines of what a program said."""
    return "\n  ".join(_lines(path)[-LAST_LINES:])


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []
