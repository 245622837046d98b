"""Watches a run from outside: reads what the run appends to its directory and shows it.

The engine may run in another process or on another machine. The only interface is the records and
the outcome in the run directory.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.fairness import Fairness
from common.io.text import LONGEST_LINE, single_line
from common.runs.json_file import RecordError
from common.runs.memory_note import estimated_bytes, read_memory_note
from common.runs.outcome import Outcome, read_outcome
from common.runs.records import RECORDS, RoundRecord, parse_line
from deploy.preflight.hardware import free_memory, measure_memory

LARGE_SHARE = 0.1  # of the free memory: a smaller estimate is not printed


class Tail:
    """Reads each record of a growing file once, by offset.

    A line counts once its newline is there. When a resume has cut the file, it is read from the
    start again. Rounds seen before are skipped, because a resumed run repeats them bit for bit.
    """

    def __init__(self, path: Path, after: int = -1) -> None:
        self.path = path
        self._file = 0  # inode; another number means that the file was replaced
        self._offset = 0
        self._line = 0
        self._round = after

    def read(self) -> list[RoundRecord]:
        """Return the records that were completed since the last call, [] before the first.

        Raises:
            RecordError: a whole line is no record, or the file cannot be read.
        """
        lines = self._new_bytes().split(b"\n")[:-1]
        records = []
        for line in lines:
            record = parse_line(line, self.path, self._line + 1)
            self._line += 1
            self._offset += len(line) + 1
            if record.round > self._round:
                self._round = record.round
                records.append(record)
        return records

    def _new_bytes(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._file or status.st_size < self._offset:
                    self._file, self._offset, self._line = status.st_ino, 0, 0
                file.seek(self._offset)
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RecordError(f"the run cannot be followed: {error}") from error


@dataclass(frozen=True)
class RunProgress:
    """Where the run is, as far as its records say."""

    round: int = 0
    drops: int = 0
    last_drop: str = ""
    voids: int = 0
    last_void: str = ""
    evaluated: int = 0
    fairness: Fairness | None = None

    def after(self, record: RoundRecord) -> "RunProgress":
        """Return the progress once this round is counted."""
        now = replace(self, round=record.round, drops=self.drops + len(record.dropped))
        if record.dropped:
            client, reason = list(record.dropped.items())[-1]
            now = replace(now, last_drop=f"round {record.round}, client {client}: {reason}")
        if record.void is not None:
            last_void = f"round {record.round}: {record.void}"
            now = replace(now, voids=self.voids + 1, last_void=last_void)
        if record.evaluation and record.evaluation.fairness:
            now = replace(now, evaluated=record.round, fairness=record.evaluation.fairness)
        return now


def lines_about(record: RoundRecord, label: str, total_rounds: int) -> Iterator[str]:
    """Yield the lines to print about a round, if any: dropped clients, void, evaluation."""
    here = f"{label}: round {record.round}/{total_rounds}"
    for client, reason in record.dropped.items():
        yield f"{here}: client {client} dropped: {reason}"
    if record.void is not None:
        yield f"{here}: void, nothing changed: {record.void}"
    if record.evaluation and record.evaluation.fairness:
        yield f"{here}: {accuracy(record.evaluation.fairness)}"
        own = record.evaluation.personal
        if own and own.fairness:
            yield f"{here}: the clients' own models: {accuracy(own.fairness)}"
    elif record.evaluation:
        yield f"{here}: evaluated, but no client had a result"


def accuracy(fairness: Fairness) -> str:
    """Say in words how accurate the model is."""
    clients = f"{fairness.clients} client" + ("s" if fairness.clients != 1 else "")
    mean, worst = 100 * fairness.mean, 100 * fairness.worst10
    return f"mean accuracy {mean:.1f} %, worst 10 % {worst:.1f} % ({clients})"


@dataclass(frozen=True)
class Pace:
    """How fast the run has gone since it was first seen: `rounds` in `seconds`."""

    rounds: int
    seconds: float

    def __str__(self) -> str:
        if self.rounds <= 0 or self.seconds <= 0:
            return "-"
        per_second = self.rounds / self.seconds
        return f"{per_second:.1f} rounds/s" if per_second >= 1 else f"{1 / per_second:.1f} s/round"

    def left(self, rounds: int) -> str:
        """Say how long `rounds` more will take."""
        if self.rounds <= 0:
            return "time left unknown"
        return f"{clock(rounds * self.seconds / self.rounds)} left"


def clock(seconds: float) -> str:
    """Return a duration as 1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def picture(progress: RunProgress, pace: Pace, label: str, total_rounds: int) -> RenderableType:
    """Draw the live display: a bar, then accuracy, drops and void rounds as far as there are."""
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        Text(label, style="bold"),
        ProgressBar(total=max(total_rounds, 1), completed=progress.round, width=30),
        Text(f"{progress.round}/{total_rounds}"),
        Text(str(pace)),
        Text(pace.left(max(total_rounds - progress.round, 0))),
    )
    notes = []
    if progress.fairness:
        notes.append(f"{accuracy(progress.fairness)} after round {progress.evaluated}")
    if progress.drops:
        notes.append(f"{progress.drops} dropped so far; last in {progress.last_drop}")
    if progress.voids:
        notes.append(f"{progress.voids} void so far; last {progress.last_void}")
    lines = [f"  {single_line(note, LONGEST_LINE)}" for note in notes]
    return Group(bar, *(Text(line, overflow="ellipsis", no_wrap=True) for line in lines))


def follow(
    run_dir: Path,
    label: str,
    total_rounds: int,
    poll: float,
    is_alive: Callable[[], bool],
    console: Console,
    *,
    after: int = 0,
) -> Outcome | None:
    """Show a run until it ends: a live display on a terminal, plain lines in a pipe.

    Ctrl-C leaves through here as KeyboardInterrupt, with the display taken down.

    Args:
        run_dir: the run's directory. It need not exist yet. An outcome that an earlier part of the
            run left there ends this at once: clear it before the run goes on.
        label: what the run is called on the screen.
        total_rounds: the last round's number.
        poll: seconds between two looks.
        is_alive: returns whether the engine is still running.
        console: where to show it.
        after: rounds up to this one were shown before the run was resumed.

    Returns:
        How the run ended, None when it was gone without saying.

    Raises:
        RecordError: the records are broken.
    """
    tail, memory = Tail(run_dir / RECORDS, after), ""
    with _screen(console, label, total_rounds) as screen:
        while True:
            alive = is_alive()  # in this order: whoever ended has written all that it will
            outcome = read_outcome(run_dir)
            if not memory:
                memory = read_memory_note(run_dir)
                if warning := memory_warning(memory):
                    line = f"{label}: {warning}"
                    console.print(line, markup=False, highlight=False, soft_wrap=True)
            screen.show(tail.read())
            if outcome is not None or not alive:
                return outcome
            time.sleep(poll)


def memory_warning(memory: str) -> str:
    """Return a warning if the server needs a large share of the free memory, else ""."""
    if not memory:
        return ""
    free, sentence = free_memory(*measure_memory())
    if estimated_bytes(memory) <= LARGE_SHARE * free:
        return ""
    return f"the server needs at most {memory}, besides its program: {sentence}"


class Screen(Protocol):
    """Somewhere to show new records."""

    def show(self, records: list[RoundRecord]) -> None:
        """Show new records. It is called at each poll, also without records."""


@dataclass(frozen=True)
class _Lines:
    console: Console
    label: str
    total_rounds: int

    def show(self, records: list[RoundRecord]) -> None:
        for record in records:
            for text in lines_about(record, self.label, self.total_rounds):
                line = single_line(text, LONGEST_LINE)
                self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Display:
    def __init__(self, live: Live, label: str, total_rounds: int) -> None:
        self._live, self._label, self._total = live, label, total_rounds
        self._progress = RunProgress()
        self._looked = False
        self._start: tuple[int, float] | None = None  # first new round and when it was seen
        self._pace = Pace(0, 0.0)

    def show(self, records: list[RoundRecord]) -> None:
        for record in records:
            self._progress = self._progress.after(record)
        if records and self._looked:  # what was there at the first look tells nothing of the pace
            now = time.monotonic()
            first, since = self._start = self._start or (self._progress.round, now)
            self._pace = Pace(self._progress.round - first, now - since)
        self._looked = True
        drawn = picture(self._progress, self._pace, self._label, self._total)
        self._live.update(drawn, refresh=True)


@contextmanager
def _screen(console: Console, label: str, total_rounds: int) -> Iterator[Screen]:
    if not console.is_terminal:
        yield _Lines(console, label, total_rounds)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _Display(live, label, total_rounds)
