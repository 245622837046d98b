"""Split conformal prediction: sets of labels that contain the true one with a given probability.

A threshold q on a score of (sample, label) is chosen on calibration samples. The set of all labels
with a score of at most q then misses the true one with probability `miscoverage` at most (Vovk,
Gammerman, Shafer, 2005). n is a number of samples, C of classes. Labels are 0..C-1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, inf
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
SCORE_TOLERANCE = 1e-12  # more than the rounding of sums of probabilities
FINEST_DISTANCE = -9.0  # log10 of the smallest distance of an edge below 1 from 1


@dataclass(frozen=True, eq=False)
class Outputs:
    """The inputs of the scores.

    Attributes:
        s: probabilities [n, C].
        u: one draw from [0, 1) per sample, shared by its labels [n]. 1 is deterministic.
        k_reg: RAPS: number of labels without a penalty. From C on, RAPS is APS.
        lam: RAPS: penalty of each further label.
    """

    s: Floats
    u: Floats
    k_reg: int = 1
    lam: float = 0.0

    @cached_property
    def order(self) -> Counts:
        """The labels of each sample by falling probability [n, C], equal ones by label."""
        return np.argsort(-self.s, axis=1, kind="stable")

    @property
    def top(self) -> Counts:
        """The most likely label of each sample [n]."""
        return self.order[:, 0]

    @property
    def ranks(self) -> Counts:
        """The place of each label in `order`, from 1 [n, C]."""
        return np.argsort(self.order, axis=1, kind="stable") + 1


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Return softmax(logits / temperature) [n, C].

    Raises:
        DataError: a logit is not finite.
    """
    with np.errstate(over="ignore"):
        scaled = logits / temperature
    if not np.isfinite(scaled).all():
        raise DataError(
            f"the model's outputs for {int((~np.isfinite(scaled)).any(axis=1).sum())} of "
            f"{len(scaled)} samples are NaN or infinite, so these samples have no scores"
        )
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True, initial=-inf))
    shares: Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares


def lac(out: Outputs) -> Floats:
    """Return 1 - s_y [n, C] (Sadinle, Lei, Wasserman, JASA 2019)."""
    return 1 - out.s


def aps(out: Outputs) -> Floats:
    """Return A(y) + u s_y [n, C], A(y) the mass of likelier labels (Romano et al., 2020)."""
    falling = np.take_along_axis(out.s, out.order, axis=1)
    before = np.zeros_like(falling)
    np.cumsum(falling[:, :-1], axis=1, out=before[:, 1:])
    mass = np.minimum(before + out.u[:, None] * falling, 1.0)
    return np.take_along_axis(mass, out.ranks - 1, axis=1)


def raps(out: Outputs) -> Floats:
    """Return aps + lam max(0, rank - k_reg) [n, C] (Angelopoulos et al., ICLR 2021)."""
    return aps(out) + out.lam * np.maximum(0, out.ranks - out.k_reg)


SCORES: Mapping[str, Callable[[Outputs], Floats]] = {"lac": lac, "aps": aps, "raps": raps}


# ---------------------------------------------------------------- thresholds


def quantile_rank(examples: int, miscoverage: float) -> int:
    """Return k = ceil((n + 1)(1 - miscoverage)), exact for the decimal number as written.

    k > n means that no finite threshold gives the coverage.

    >>> quantile_rank(9, 0.1), quantile_rank(8, 0.1)
    (9, 9)
    """
    return ceil((examples + 1) * (1 - _exact(miscoverage)))


def min_examples(miscoverage: float) -> int:
    """Return the size of the smallest calibration set with a finite threshold.

    >>> min_examples(0.1), min_examples(0.05)
    (9, 19)
    """
    return ceil(1 / _exact(miscoverage) - 1)


def _exact(miscoverage: float) -> Fraction:
    if not 0 < miscoverage < 1:
        raise DataError(f"miscoverage is {miscoverage}, expected 0 < miscoverage < 1")
    return Fraction(repr(float(miscoverage)))


def quantile(scores: Floats, miscoverage: float) -> float:
    """Return the threshold: the k-th smallest score of the true labels [n], inf for k > n.

    Raises:
        DataError: there are no scores, or one is NaN.
    """
    _check_not_empty(len(scores))
    if np.isnan(scores).any():
        raise DataError(f"{int(np.isnan(scores).sum())} of {len(scores)} scores are NaN")
    k = quantile_rank(len(scores), miscoverage)
    return float(np.sort(scores)[k - 1]) if k <= len(scores) else inf


def _check_not_empty(examples: int) -> None:
    if not examples:
        raise DataError(
            "there are no calibration samples: set data.calibration-fraction, or use more data"
        )


def bin_edges(score: str, classes: int, bins: int, *, k_reg: int, lam: float) -> Floats:
    """Return bins + 1 ascending edges from 0 to the largest possible value of a score.

    This value is the score of the last label if the model is certain of another. Half of the edges
    are equidistant, so no bin is wider than twice the value over `bins`. The other half approaches
    1, where the scores of confident models crowd. A coarse edge there would put all labels into
    every set.

    Args:
        score: a key of `SCORES`.
        classes: number of classes, C.
        bins: number of bins.
        k_reg: RAPS: number of labels without a penalty.
        lam: RAPS: penalty of each further label.
    """
    sure = Outputs(np.eye(1, classes), np.ones(1), k_reg, lam)
    dense = bins // 2
    even = np.linspace(0.0, SCORES[score](sure).max(), bins - dense + 1)
    return np.sort(np.concatenate([even, 1 - np.logspace(-1, FINEST_DISTANCE, dense)]))


def histogram(scores: Floats, edges: Floats) -> Counts:
    """Return the number of scores in each bin (lower edge, upper edge]. 0 is in the first bin.

    Args:
        scores: scores of the true labels [n].
        edges: ascending edges [bins + 1].

    Raises:
        DataError: a score is NaN or outside of the edges.
    """
    if len(scores) and not (scores.min() >= edges[0] and scores.max() <= edges[-1]):
        raise DataError(f"expected scores in [{edges[0]}, {edges[-1]}], got some outside")
    places = np.searchsorted(edges[1:-1], scores, side="left")
    return np.bincount(places, minlength=len(edges) - 1).astype(np.int64)


def threshold(counts: Counts, edges: Floats, miscoverage: float) -> float:
    """Return the upper edge of the bin that holds the k-th smallest score, inf for k > n.

    So it is at least `quantile` of the scores themselves, and exceeds it by at most the bin's
    width. Histograms of several clients are pooled by adding their counts.

    Args:
        counts: number of scores in each bin [bins].
        edges: edges of the bins [bins + 1].
        miscoverage: largest probability that a set misses the true label.

    Raises:
        DataError: the counts are all 0.
    """
    examples = int(counts.sum())
    _check_not_empty(examples)
    k = quantile_rank(examples, miscoverage)
    return float(edges[1 + np.searchsorted(np.cumsum(counts), k)]) if k <= examples else inf


# ---------------------------------------------------------------- sets


def prediction_sets(scores: Floats, q: float, top: Counts) -> NDArray[np.bool_]:
    """Return whether each label is in each sample's set [n, C].

    An empty set gets the most likely label, which can only raise the coverage.

    Args:
        scores: scores of all labels [n, C].
        q: the threshold. inf puts all labels into all sets.
        top: the most likely label of each sample [n].
    """
    chosen: NDArray[np.bool_] = scores <= q + SCORE_TOLERANCE
    empty = np.flatnonzero(~chosen.any(axis=1))
    chosen[empty, top[empty]] = True
    return chosen


@dataclass(frozen=True, eq=False)
class Tally:
    """Sets counted by their size. The counts of several clients are added.

    Attributes:
        sizes: number of sets with 0, 1, ..., C labels [C + 1].
        covered: number of these that contain the true label [C + 1].
    """

    sizes: Counts
    covered: Counts

    @classmethod
    def of(cls, sets: NDArray[np.bool_], labels: NDArray[Any]) -> "Tally":
        """Count sets [n, C] of samples with these true labels [n]."""
        sizes, hit = sets.sum(axis=1), sets[np.arange(len(sets)), labels]
        places = sets.shape[1] + 1
        return cls(
            np.bincount(sizes, minlength=places).astype(np.int64),
            np.bincount(sizes[hit], minlength=places).astype(np.int64),
        )

    @classmethod
    def none(cls, classes: int) -> "Tally":
        """Return the tally of no sets."""
        return cls(np.zeros(classes + 1, np.int64), np.zeros(classes + 1, np.int64))

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.sizes + other.sizes, self.covered + other.covered)

    @property
    def examples(self) -> int:
        """The number of counted sets."""
        return int(self.sizes.sum())

    @property
    def coverage(self) -> float | None:
        """The share of sets that contain the true label, None without sets."""
        return int(self.covered.sum()) / self.examples if self.examples else None

    @property
    def mean_size(self) -> float | None:
        """The mean number of labels per set, None without sets."""
        labels = int(self.sizes @ np.arange(len(self.sizes)))
        return labels / self.examples if self.examples else None

    @property
    def coverage_by_size(self) -> list[float | None]:
        """The coverage of the sets of 0, 1, ..., C labels, None if there are none."""
        pairs = zip(self.covered.tolist(), self.sizes.tolist(), strict=True)
        return [covered / size if size else None for covered, size in pairs]
