"""What the figures and tables of a study are made of: numbers of a family over its seeds.

The end of a family is the last round that all its evaluated seeds evaluated, so that a repetition
that is still running is compared at the round it has reached.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from common.config import RunConfig
from common.fairness import Fairness, rounds_to_reach
from common.runs.client_scores import Evaluation
from common.statistics import (
    PairedDifference,
    SeedSummary,
    area_under_curve,
    mean_curve,
    paired_difference,
    summarise_seeds,
)
from common.types import ClientId
from deploy.report.html.elements import printable
from deploy.report.run_data import RunData
from deploy.report.run_groups import Family, Study, said

REFERENCE = "fedavg"  # what the papers compare with
OfFairness = Callable[[Fairness], float]
Frozen = tuple[tuple[int | None, tuple[tuple[ClientId, float], ...]], ...]


def mean(fairness: Fairness) -> float:
    """Return the unweighted mean over clients."""
    return fairness.mean


def worst10(fairness: Fairness) -> float:
    """Return the mean of the worst tenth of clients."""
    return fairness.worst10


def spread(fairness: Fairness) -> float:
    """Return the standard deviation over clients."""
    return fairness.spread


def jain(fairness: Fairness) -> float:
    """Return Jain's index."""
    return fairness.jain


def minimum(fairness: Fairness) -> float:
    """Return the accuracy of the worst-served client."""
    return fairness.minimum


def changed(family: Family) -> dict[str, Any]:
    """Return those of the family's varied settings that are not at their defaults."""
    defaults = RunConfig().to_flat()
    return {key: value for key, value in family.varied.items() if value != defaults.get(key)}


def name_of(family: Family) -> str:
    """Return the method and those of its varied settings that are not at their defaults."""
    words = [family.method, *(said(key, value) for key, value in changed(family).items())]
    own = ", own models" if family.personal else ""
    return printable(" ".join(words) + own if family.method else family.label)


def evaluated(study: Study) -> list[Family]:
    """Return the families of which something was evaluated, at a round that their seeds share."""
    return [family for family in study.families if last_round(family)]


def curve(family: Family, get: OfFairness = mean) -> list[tuple[int, SeedSummary]]:
    """Return a number's mean and range over seeds at the rounds that all of them evaluated."""
    tables = [dict(run.evaluated) for run in family.by_seed.values()]
    shared = sorted(set.intersection(*map(set, tables))) if tables else []
    pairs = [(number, summarise_seeds(get(table[number]) for table in tables)) for number in shared]
    return [(number, value) for number, value in pairs if value]


def last_round(family: Family) -> int | None:
    """Return the last round that all evaluated seeds of the family evaluated."""
    points = curve(family)
    return points[-1][0] if points else None


def final(family: Family, get: OfFairness = mean) -> SeedSummary | None:
    """Return a number's mean and range over seeds at the end of the family."""
    points = curve(family, get)
    return points[-1][1] if points else None


def evaluations(family: Family) -> dict[int | None, Evaluation]:
    """Return the evaluation at the end of the family, by seed."""
    end = last_round(family)
    found: dict[int | None, Evaluation] = {}
    for seed, run in family.by_seed.items():
        for record in run.records:
            if record.round == end and record.evaluation:
                found[seed] = record.evaluation
    return found


def served(family: Family) -> dict[int | None, dict[ClientId, float]]:
    """Return each client's accuracy at the end of the family, by seed."""
    return {seed: each.accuracies for seed, each in evaluations(family).items()}


def of_runs(family: Family, get: Callable[[RunData], float | None]) -> SeedSummary | None:
    """Return a number of whole runs, its mean and range over the seeds."""
    return summarise_seeds(get(run) for run in family.runs)


def area(run: RunData) -> float | None:
    """Return the mean height of a run's accuracy over its rounds."""
    return area_under_curve(run.curve)


def best(families: Sequence[Family], get: OfFairness = mean) -> Family | None:
    """Return the family that ends highest, the first of equals; None if none was evaluated."""
    ends = [(final(family, get), family) for family in families]
    known = [(value.mean, family) for value, family in ends if value]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def foremost(families: Sequence[Family]) -> Family | None:
    """Return what stands for a method: its family at the default settings, else the highest.

    A variant that happens to end higher is not put in the method's place.
    """
    usual = [family for family in families if last_round(family) and not changed(family)]
    return best(usual or families)


def leaders(study: Study) -> list[Family]:
    """Return what stands for each method, without the clients' own models; of one method, all."""
    groups: dict[str, list[Family]] = {}
    for family in evaluated(study):
        if not family.personal:
            groups.setdefault(family.method or family.label, []).append(family)
    if len(groups) == 1:
        return next(iter(groups.values()))
    return [leader for leader in map(foremost, groups.values()) if leader]


def reference(study: Study) -> Family | None:
    """Return what the others are compared with.

    FedAvg, at its defaults, else where it ends highest; without it the study's first family.
    """
    families = [family for family in evaluated(study) if not family.personal]
    plain = [family for family in families if family.method == REFERENCE]
    return foremost(plain) or (families[0] if families else None)


@dataclass(frozen=True)
class RoundsToTarget:
    """When a family's mean curve first reaches the study's target, or the reference's end.

    Attributes:
        target: that accuracy.
        total: rounds of the reference.
        base: the rounds that the reference took: all of them to its own end; None if it has not
            reached the target.
        round: the first evaluated round; None if it was not reached.
    """

    target: float
    total: int
    base: int | None
    round: int | None

    @property
    def share(self) -> float | None:
        """The round as a share of the reference's rounds."""
        return self.round / self.total if self.round else None

    @property
    def speedup(self) -> float | None:
        """How many times sooner than the reference; at least, where that did not get there."""
        return (self.base or self.total) / self.round if self.round else None

    @property
    def how_soon(self) -> str:
        """The speed-up as it is printed, "" without one."""
        more = "" if self.base else "> "
        return f"{more}{self.speedup:.1f}x" if self.speedup else ""


def reached(study: Study) -> list[tuple[Family, RoundsToTarget]]:
    """Return for each evaluated family when it reaches the target, or the reference's end."""
    base = reference(study)
    points = _mean_points(base) if base else []
    if not points:
        return []
    total, end = points[-1]
    target = end if study.target is None else study.target
    taken = total if study.target is None else rounds_to_reach(points, target)
    return [
        (
            family,
            RoundsToTarget(target, total, taken, rounds_to_reach(_mean_points(family), target)),
        )
        for family in evaluated(study)
        if not family.personal
    ]


def goal(study: Study) -> str:
    """Return what is to be reached, in words."""
    base, found = reference(study), reached(study)
    if not base or not found:
        return ""
    end = f", the end of {name_of(base)}" if study.target is None else ""
    return f"{100 * found[0][1].target:.1f} %{end}"


def _mean_points(family: Family) -> list[tuple[int, float]]:
    return mean_curve([run.curve for run in family.by_seed.values()])


def differences(study: Study, statistic: str) -> list[tuple[Family, PairedDifference]]:
    """Return how much better each family is than the reference on the same clients.

    Args:
        study: whose families are compared.
        statistic: a key of `common.statistics.STATISTICS`.
    """
    base = reference(study)
    theirs = _frozen(served(base)) if base else ()
    pairs = [
        (family, _difference(_frozen(served(family)), theirs, statistic))
        for family in evaluated(study)
        if family is not base and not family.personal
    ]
    return [(family, difference) for family, difference in pairs if difference]


def _frozen(tables: Mapping[int | None, Mapping[ClientId, float]]) -> Frozen:
    return tuple((seed, tuple(table.items())) for seed, table in tables.items())


@lru_cache(maxsize=256)
def _difference(ours: Frozen, theirs: Frozen, statistic: str) -> PairedDifference | None:
    """The bootstrap takes longest of all: a figure and a table of the same numbers share it."""
    one, other = ({seed: dict(table) for seed, table in side} for side in (ours, theirs))
    return paired_difference(one, other, statistic)


def varied_alone(study: Study) -> dict[str, Mapping[Any, Family]]:
    """Return the settings along which families differ in nothing else, with their families.

    Only families that were evaluated; settings with two values or more.
    """
    shown = {id(family) for family in evaluated(study)}
    keys = dict.fromkeys(key for family in study.families for key in family.varied)
    keys.pop("rounds", None)  # how long a run was is no setting of its method
    found: dict[str, Mapping[Any, Family]] = {}
    for key in keys:
        along = {v: f for v, f in study.along(key).items() if id(f) in shown}
        if len(along) > 1:
            found[key] = along
    return found
