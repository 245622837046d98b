"""The columns of every results table: terminal, page, sweep table and JSON."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from common.statistics import SeedSummary
from deploy.report import metrics
from deploy.report.run_data import RunData
from deploy.report.run_groups import Family

PERCENT: Final = "%"


@dataclass(frozen=True)
class Column:
    """One number of a run or family, with its name, unit, format and direction.

    Attributes:
        key: name in JSON files.
        title: name in the page.
        terminal_title: name in a terminal table, in two lines at most.
        unit: "%" for a share in [0, 1], else the unit that the title names.
        decimals: in a terminal table.
        better: whether higher or lower values are better.
        of_run: returns the value of a run, None if it is unknown.
        of_family: returns mean and range over the seeds of a family, None if unknown.
    """

    key: str
    title: str
    terminal_title: str
    unit: Literal["%", "MB", "s", ""]
    decimals: int
    better: Literal["higher", "lower"]
    of_run: Callable[[RunData], float | None]
    of_family: Callable[[Family], SeedSummary | None]

    def text(self, value: float, decimals: int | None = None) -> str:
        """Format a value, with `self.decimals` unless another number is given."""
        decimals = self.decimals if decimals is None else decimals
        if self.unit == PERCENT:
            return f"{100 * value:.{decimals}f} %"
        return f"{value:.{decimals}f}"

    def best(self, values: Sequence[float]) -> float:
        """Return the best of the values."""
        return max(values) if self.better == "higher" else min(values)


def megabytes_per_client_round(run: RunData) -> float | None:
    """Return mean MB (10^6 bytes) sent to a sampled client plus mean MB of a reply."""
    down = [size for record in run.records for size in record.bytes_down.values()]
    up = [size for record in run.records for size in record.bytes_up.values()]
    return (sum(down) / len(down) + sum(up) / max(len(up), 1)) / 1e6 if down else None


def seconds_per_round(run: RunData) -> float | None:
    """Return the mean seconds of a round without its evaluation."""
    phases = [record.seconds for record in run.records if record.seconds]
    spent = [sum(s for phase, s in each.items() if phase != "evaluate") for each in phases]
    return sum(spent) / len(spent) if spent else None


def _last(run: RunData, get: metrics.OfFairness) -> float | None:
    return get(run.evaluated[-1][1]) if run.evaluated else None


def _of_fairness(
    key: str,
    title: str,
    terminal_title: str,
    get: metrics.OfFairness,
    *,
    unit: Literal["%", ""] = PERCENT,
    decimals: int = 2,
    better: Literal["higher", "lower"] = "higher",
) -> Column:
    of_run, of_family = partial(_last, get=get), partial(metrics.final, get=get)
    return Column(key, title, terminal_title, unit, decimals, better, of_run, of_family)


def _of_whole_run(
    key: str,
    title: str,
    terminal_title: str,
    get: Callable[[RunData], float | None],
    *,
    unit: Literal["%", "MB", "s"],
    better: Literal["higher", "lower"] = "lower",
) -> Column:
    of_family = partial(metrics.of_runs, get=get)
    return Column(key, title, terminal_title, unit, 2, better, get, of_family)


MEAN = _of_fairness("mean", "mean accuracy", "mean\naccuracy", metrics.mean)
WORST10 = _of_fairness("worst10", "worst 10 %", "worst\n10 %", metrics.worst10)
SPREAD = _of_fairness("spread", "spread", "spread", metrics.spread, better="lower")
JAIN = _of_fairness("jain", "Jain index", "Jain\nindex", metrics.jain, unit="", decimals=3)
MINIMUM = _of_fairness("minimum", "lowest client", "lowest\nclient", metrics.minimum)
AREA = _of_whole_run(
    "mean_over_rounds", "mean over the rounds", "mean over\nrounds", metrics.area,
    unit=PERCENT, better="higher",
)  # fmt: skip
MEGABYTES = _of_whole_run(
    "megabytes_per_client_round", "MB per client and round", "MB per\nclient",
    megabytes_per_client_round, unit="MB",
)  # fmt: skip
SECONDS = _of_whole_run(
    "seconds_per_round", "s per round", "s per\nround", seconds_per_round, unit="s"
)
FAMILY_COLUMNS = (MEAN, WORST10, SPREAD, JAIN, MINIMUM, AREA, MEGABYTES, SECONDS)
RUN_COLUMNS = tuple(column for column in FAMILY_COLUMNS if column is not AREA)
SWEEP_COLUMNS = (MEAN, WORST10, SPREAD, JAIN)
