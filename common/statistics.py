"""Statistics over several runs: over seeds, over rounds, and two methods on the same clients.

An undefined value is None, never 0 and never NaN.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.fairness import worst_count
from common.rng import stream
from common.types import ClientId

Curve = Sequence[tuple[int, float]]  # (round, accuracy) of the evaluated rounds, in order
Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # [..., N] -> [...]

LEVEL = 0.95  # of an interval
REPEATS = 2000  # of the bootstrap
NO_WIDTH = 1e-9  # a narrower interval is rounding of sums of equal numbers


@dataclass(frozen=True)
class SeedSummary:
    """The mean and the range of a number over the seeds for which it is defined."""

    mean: float
    low: float
    high: float
    seeds: int


def summarise_seeds(values: Iterable[float | None]) -> SeedSummary | None:
    """Summarise one number per seed, or return None if it is defined for none of them.

    >>> summarise_seeds([0.25, None, 0.75])
    SeedSummary(mean=0.5, low=0.25, high=0.75, seeds=2)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    return SeedSummary(fsum(known) / len(known), min(known), max(known), len(known))


def area_under_curve(curve: Curve) -> float | None:
    """Return the mean height of the curve between its first and last evaluated round.

    It uses trapezoids, so it does not depend on the number of evaluations of a straight part. It is
    in [0, 1], and None for fewer than two evaluations.

    >>> area_under_curve([(1, 0.0), (3, 1.0)])
    0.5
    """
    if len(curve) < 2:
        return None
    rounds, heights = np.array(curve, dtype=np.float64).T
    return float(np.trapezoid(heights, rounds) / (rounds[-1] - rounds[0]))


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """Return the mean over seeds at the rounds that all of them evaluated."""
    if not curves:
        return []
    tables = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return [(number, fsum(t[number] for t in tables) / len(tables)) for number in shared]


def mean_accuracy(accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unweighted mean over the last axis [..., N] -> [...]."""
    return np.asarray(accuracies.mean(axis=-1))


def worst_tenth(accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the ceil(N / 10) smallest along the last axis [..., N] -> [...]."""
    count = worst_count(accuracies.shape[-1])
    return np.asarray(np.sort(accuracies, axis=-1)[..., :count].mean(axis=-1))


STATISTICS: Mapping[str, Statistic] = {"mean": mean_accuracy, "worst10": worst_tenth}


@dataclass(frozen=True)
class PairedDifference:
    """The difference between two methods on the same clients.

    Attributes:
        value: mean over the seeds of statistic(ours) - statistic(theirs).
        low: lower end of the interval.
        high: upper end of the interval.
        seeds: number of seeds that both have.
        clients: number of clients that both have, all seeds together.
    """

    value: float
    low: float
    high: float
    seeds: int
    clients: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0.

        It is not clear if a single seed gives an interval without width. With one client, or with
        clients that all differ by the same number, a bootstrap cannot estimate the variation.
        """
        known = self.seeds > 1 or self.high - self.low > NO_WIDTH
        return known and (self.low > 0 or self.high < 0)


def paired_difference(
    ours: Mapping[Any, Mapping[ClientId, float]],
    theirs: Mapping[Any, Mapping[ClientId, float]],
    statistic: str,
    *,
    repeats: int = REPEATS,
    level: float = LEVEL,
) -> PairedDifference | None:
    """Compare two methods by a paired bootstrap over seeds and, within a seed, over clients.

    A repeat draws seeds with replacement, and for each of them clients with replacement, the same
    for both methods. The interval is that of the percentiles (Efron and Tibshirani, An Introduction
    to the Bootstrap, 1993, ch. 13). With one seed it does not cover the variation between seeds.

    Args:
        ours: accuracy by client, by seed.
        theirs: the same of the other method.
        statistic: a key of STATISTICS.
        repeats: number of bootstrap repeats.
        level: level of the interval, in (0, 1).

    Returns:
        The difference, or None if the two share no client of any seed.
    """
    pairs = []
    for key in sorted(ours.keys() & theirs.keys(), key=str):
        shared = sorted(ours[key].keys() & theirs[key].keys())
        if shared:
            table = [[side[key][client] for client in shared] for side in (ours, theirs)]
            pairs.append(np.array(table, dtype=np.float64))  # [2, N]
    if not pairs:
        return None
    measure, seeds = STATISTICS[statistic], len(pairs)

    def differences(both: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(measure(both[0]) - measure(both[1]))

    rng = stream(0, "bootstrap", statistic)
    drawn = np.empty((seeds, repeats, seeds))  # [seed, repeat, slot]
    for place, both in enumerate(pairs):
        clients = both.shape[1]
        for slot in range(seeds):  # one slot at a time, so that memory is [repeats, N]
            index = rng.integers(clients, size=(repeats, clients))
            drawn[place, :, slot] = differences(both[:, index])
    chosen = rng.integers(seeds, size=(repeats, seeds))
    picked = np.take_along_axis(drawn, chosen[None], axis=0)[0]
    tail = (1 - level) / 2
    low, high = np.quantile(picked.mean(axis=1), [tail, 1 - tail])
    value = fsum(float(differences(both)) for both in pairs) / seeds
    return PairedDifference(value, float(low), float(high), seeds, sum(p.shape[1] for p in pairs))
