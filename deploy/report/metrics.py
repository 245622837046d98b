"""Metrics of a family over its seeds, and of the families of a study against the reference.

Final values are those of the last round that all evaluated seeds of the family have evaluated. A
run that is not finished is therefore compared at the round it has reached.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from common.config import RunConfig
from common.fairness import Fairness, rounds_to_reach
from common.io.text import printable
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
from deploy.report.run_data import RunData
from deploy.report.run_groups import Family, Study, setting_text

REFERENCE = "fedavg"  # the reference of the papers
OfFairness = Callable[[Fairness], float]
Frozen = tuple[tuple[int | None, tuple[tuple[ClientId, float], ...]], ...]


def mean(fairness: Fairness) -> float:
    """Return the unweighted mean accuracy over the clients."""
    return fairness.mean


def worst10(fairness: Fairness) -> float:
    """Return the mean of the lowest 10 % of the accuracies."""
    return fairness.worst10


def spread(fairness: Fairness) -> float:
    """Return the standard deviation of accuracy over the clients."""
    return fairness.spread


def jain(fairness: Fairness) -> float:
    """Return Jain's index."""
    return fairness.jain


def minimum(fairness: Fairness) -> float:
    """Return the lowest accuracy of a client."""
    return fairness.minimum


def changed(family: Family) -> dict[str, Any]:
    """Return the varied settings of the family that differ from their defaults."""
    defaults = RunConfig().to_flat()
    return {key: value for key, value in family.varied.items() if value != defaults.get(key)}


def name_of(family: Family) -> str:
    """Return the method and its varied settings that differ from their defaults."""
    words = [family.method, *(setting_text(key, value) for key, value in changed(family).items())]
    own = ", own models" if family.personal else ""
    return printable(" ".join(words) + own if family.method else family.label)


def evaluated(study: Study) -> list[Family]:
    """Return the families whose seeds have an evaluated round in common."""
    return [family for family in study.families if last_round(family)]


def curve(family: Family, get: OfFairness = mean) -> list[tuple[int, SeedSummary]]:
    """Return (round, mean and range over seeds) for the rounds that all seeds evaluated."""
    tables = [dict(run.evaluated) for run in family.by_seed.values()]
    shared = sorted(set.intersection(*map(set, tables))) if tables else []
    pairs = [(number, summarise_seeds(get(table[number]) for table in tables)) for number in shared]
    return [(number, value) for number, value in pairs if value]


def last_round(family: Family) -> int | None:
    """Return the last round that all evaluated seeds of the family have evaluated."""
    points = curve(family)
    return points[-1][0] if points else None


def final(family: Family, get: OfFairness = mean) -> SeedSummary | None:
    """Return the final mean and range over seeds of a metric."""
    points = curve(family, get)
    return points[-1][1] if points else None


def evaluations(family: Family) -> dict[int | None, Evaluation]:
    """Return the final evaluation of each seed."""
    end = last_round(family)
    found: dict[int | None, Evaluation] = {}
    for seed, run in family.by_seed.items():
        for record in run.records:
            if record.round == end and record.evaluation:
                found[seed] = record.evaluation
    return found


def client_accuracies(family: Family) -> dict[int | None, dict[ClientId, float]]:
    """Return the final accuracy of each client, by seed."""
    return {seed: each.accuracies for seed, each in evaluations(family).items()}


def of_runs(family: Family, get: Callable[[RunData], float | None]) -> SeedSummary | None:
    """Return the mean and range over seeds of a number of whole runs."""
    return summarise_seeds(get(run) for run in family.runs)


def area(run: RunData) -> float | None:
    """Return the mean height of the accuracy curve of a run."""
    return area_under_curve(run.curve)


def best(families: Sequence[Family], get: OfFairness = mean) -> Family | None:
    """Return the family with the highest final mean, None if no family was evaluated.

    The first one wins a tie.
    """
    ends = [(final(family, get), family) for family in families]
    known = [(value.mean, family) for value, family in ends if value]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def representative(families: Sequence[Family]) -> Family | None:
    """Return the family that represents a method: default settings, else the highest final mean.

    A variant with a higher final mean does not replace the default settings.
    """
    default = [family for family in families if last_round(family) and not changed(family)]
    return best(default or families)


def leaders(study: Study) -> list[Family]:
    """Return the representative of each method. With only one method, return all its families.

    Families of the clients' own models are left out.
    """
    groups: dict[str, list[Family]] = {}
    for family in evaluated(study):
        if not family.personal:
            groups.setdefault(family.method or family.label, []).append(family)
    if len(groups) == 1:
        return next(iter(groups.values()))
    return [leader for leader in map(representative, groups.values()) if leader]


def reference(study: Study) -> Family | None:
    """Return the family that the others are compared with.

    This is FedAvg with default settings, else the FedAvg family with the highest final mean.
    Without FedAvg it is the first family.
    """
    families = [family for family in evaluated(study) if not family.personal]
    plain = [family for family in families if family.method == REFERENCE]
    return representative(plain) or (families[0] if families else None)


@dataclass(frozen=True)
class RoundsToTarget:
    """The round in which the mean curve of a family first reaches an accuracy.

    Attributes:
        target: the accuracy: the study's target, or the final accuracy of the reference.
        total: rounds of the reference.
        base: rounds that the reference needs, None if it does not reach the target. For its own
            final accuracy it needs all its rounds.
        round: the first evaluated round, None if the target was not reached.
    """

    target: float
    total: int
    base: int | None
    round: int | None

    @property
    def share(self) -> float | None:
        """The round as a share of the rounds of the reference."""
        return self.round / self.total if self.round else None

    @property
    def speedup(self) -> float | None:
        """The rounds of the reference divided by the round.

        This is a lower bound if the reference did not reach the target.
        """
        return (self.base or self.total) / self.round if self.round else None

    @property
    def speedup_text(self) -> str:
        """The speed-up as text, "" without one."""
        more = "" if self.base else "> "
        return f"{more}{self.speedup:.1f}x" if self.speedup else ""


def reached(study: Study) -> list[tuple[Family, RoundsToTarget]]:
    """Return for each evaluated family the round in which it reaches the target.

    Without a target, it is the final accuracy of the reference.
    """
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
    """Return the accuracy to reach, as text."""
    base, found = reference(study), reached(study)
    if not base or not found:
        return ""
    end = f", the final accuracy of {name_of(base)}" if study.target is None else ""
    return f"{100 * found[0][1].target:.1f} %{end}"


def _mean_points(family: Family) -> list[tuple[int, float]]:
    return mean_curve([run.curve for run in family.by_seed.values()])


def differences(study: Study, statistic: str) -> list[tuple[Family, PairedDifference]]:
    """Return the difference of each family to the reference on the same clients.

    Args:
        study: the study.
        statistic: a key of `common.statistics.STATISTICS`.
    """
    base = reference(study)
    theirs = _frozen(client_accuracies(base)) if base else ()
    pairs = [
        (family, _difference(_frozen(client_accuracies(family)), theirs, statistic))
        for family in evaluated(study)
        if family is not base and not family.personal
    ]
    return [(family, difference) for family, difference in pairs if difference]


def _frozen(tables: Mapping[int | None, Mapping[ClientId, float]]) -> Frozen:
    return tuple((seed, tuple(table.items())) for seed, table in tables.items())


@lru_cache(maxsize=256)
def _difference(ours: Frozen, theirs: Frozen, statistic: str) -> PairedDifference | None:
    """Return the paired difference. Cached, because a figure and a table share the bootstrap."""
    one, other = ({seed: dict(table) for seed, table in side} for side in (ours, theirs))
    return paired_difference(one, other, statistic)


def varied_alone(study: Study) -> dict[str, Mapping[Any, Family]]:
    """Return the settings that vary alone, with the evaluated families by value.

    Families of one setting differ in nothing else. A setting has at least two values.
    """
    shown = {id(family) for family in evaluated(study)}
    keys = dict.fromkeys(key for family in study.families for key in family.varied)
    keys.pop("rounds", None)  # the length of a run is not a setting of its method
    found: dict[str, Mapping[Any, Family]] = {}
    for key in keys:
        along = {v: f for v, f in study.along(key).items() if id(f) in shown}
        if len(along) > 1:
            found[key] = along
    return found
