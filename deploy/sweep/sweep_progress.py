"""How a sweep goes: one picture on a terminal, a line for each run that ends elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.runs.json_file import RecordError
from common.runs.records import RECORDS
from deploy.engines.progress import Tail, accuracy, clock
from deploy.report.run_data import read_run
from deploy.sweep.jobs import Result, SweepMonitor
from deploy.sweep.run_status import RunStatus
from deploy.sweep.runs import PlannedRun

BETWEEN_SECONDS = 1.0  # two pictures
MOST_ROWS = 16


@dataclass
class SweepTally:
    """The finished runs, and the seconds of a round.

    Attributes:
        total: runs to do in this sweep.
        job_slots: runs at once.
        done: runs that completed.
        failed: runs that did not.
    """

    total: int
    job_slots: int
    done: int = 0
    failed: int = 0
    _paces: dict[tuple[str, ...], tuple[int, float]] = field(default_factory=dict)

    def ended(self, result: Result) -> None:
        """Count a run, and its rounds' seconds if it completed."""
        if result.status == "failed":
            self.failed += 1
            return
        self.done += 1
        rounds = result.run_status.run.config.rounds - result.run_status.done
        if rounds > 0:
            for kind in _kinds(result.run_status.run):
                before = self._paces.get(kind, (0, 0.0))
                self._paces[kind] = (before[0] + rounds, before[1] + result.seconds)

    @property
    def left(self) -> int:
        """Runs that have not ended."""
        return self.total - self.done - self.failed

    def seconds_left(
        self, running: Sequence[tuple[RunStatus, int]], waiting: Sequence[RunStatus]
    ) -> float | None:
        """Estimate the seconds until the end, None before the first run has ended.

        Args:
            running: runs under way, with the last round that each has done.
            waiting: runs that have not begun.
        """
        if not self._paces:
            return None
        under_way = [self._seconds(one.run, max(one.done, now)) for one, now in running]
        ahead = [self._seconds(one.run, one.done) for one in waiting]
        return max([(sum(under_way) + sum(ahead)) / max(self.job_slots, 1), *under_way])

    def _seconds(self, run: PlannedRun, done: int) -> float:
        rounds, seconds = next(self._paces[k] for k in _kinds(run) if k in self._paces)
        return max(run.config.rounds - done, 0) * seconds / rounds

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} runs done{failed}, {self.left} left"


def _kinds(run: PlannedRun) -> Iterator[tuple[str, ...]]:
    """Yield what a run is like, from near to far."""
    config = run.config
    task = (config.data.name, config.model, str(config.cohort_size * config.train.epochs))
    yield (*task, config.method)
    yield task
    yield task[:2]
    yield ()


def line_about(result: Result) -> str:
    """Say in a line how a run ended."""
    name, took = result.run_status.run.name, clock(result.seconds)
    if result.status == "failed":
        return f"{name} failed after {took}: {result.message}"
    try:
        found = read_run(result.run_status.folder).evaluated
    except RecordError as error:
        return f"{name} done in {took}, but {error}"
    return f"{name} done in {took}: {accuracy(found[-1][1]) if found else 'nothing evaluated'}"


class Lines:
    """A line for each run that ends."""

    def __init__(self, tally: SweepTally, say: Callable[[str], None]) -> None:
        self.tally, self._say = tally, say
        self._running: Sequence[RunStatus] = ()
        self._waiting: Sequence[RunStatus] = ()

    def look(self, running: Sequence[RunStatus], waiting: Sequence[RunStatus]) -> None:
        """Remember what goes on, for the estimate."""
        self._running, self._waiting = running, waiting

    def ended(self, result: Result) -> None:
        """Print how the run ended, and what is left."""
        self.tally.ended(result)
        others = [(one, one.done) for one in self._running if one is not result.run_status]
        seconds = self.tally.seconds_left(others, self._waiting)
        about = f", about {clock(seconds)}" if seconds and self.tally.left else ""
        self._say(line_about(result))
        self._say(f"  {self.tally}{about}")


class Picture:
    """A picture that is drawn anew: what goes on, above it the runs that have ended."""

    def __init__(self, tally: SweepTally, say: Callable[[str], None], live: Live) -> None:
        self.tally, self._say, self._live = tally, say, live
        self._tails: dict[str, Tail] = {}
        self._rounds: dict[str, int] = {}
        self._drawn = 0.0

    def look(self, running: Sequence[RunStatus], waiting: Sequence[RunStatus]) -> None:
        """Draw what goes on, not more often than an eye can use."""
        if time.monotonic() - self._drawn < BETWEEN_SECONDS:
            return
        self._drawn = time.monotonic()
        now = [(one, self._round(one)) for one in running]
        drawn = picture(self.tally, now, self.tally.seconds_left(now, waiting))
        self._live.update(drawn, refresh=True)

    def ended(self, result: Result) -> None:
        """Print how the run ended."""
        self.tally.ended(result)
        self._say(line_about(result))

    def _round(self, run_status: RunStatus) -> int:
        key = str(run_status.folder)
        tail = self._tails.setdefault(key, Tail(run_status.folder / RECORDS, run_status.done))
        try:
            records = tail.read()
        except RecordError:  # told when the run has ended
            records = []
        last = records[-1].round if records else self._rounds.get(key, run_status.done)
        self._rounds[key] = last
        return last


def picture(
    tally: SweepTally, running: Sequence[tuple[RunStatus, int]], seconds: float | None
) -> RenderableType:
    """Draw how the sweep stands, and a bar for each run under way."""
    about = f", about {clock(seconds)}" if seconds is not None else ""
    rows = Table.grid(padding=(0, 2))
    for run_status, done in running[:MOST_ROWS]:
        rounds = run_status.run.config.rounds
        bar = ProgressBar(total=rounds, completed=done, width=24)
        rows.add_row(Text(run_status.run.name), bar, Text(f"{done}/{rounds}"))
    more = len(running) - MOST_ROWS
    rest = [Text(f"and {more} more")] if more > 0 else []
    return Group(rows, *rest, Text(f"{tally}{about}", style="bold"))


@contextmanager
def monitoring(console: Console, total: int, job_slots: int) -> Iterator[SweepMonitor]:
    """Yield who shows the sweep on this console."""
    tally = SweepTally(total, job_slots)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield Lines(tally, say)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield Picture(tally, say, live)
