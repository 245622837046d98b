"""FedFV: project conflicting updates off each other before they are averaged.

Wang, Fan, Qi, Wen, Wang, Yu. Federated Learning with Fair Averaging. IJCAI 2021 (arXiv
2104.14937), Algorithms 1 to 3. Each displacement is projected off those it conflicts with, in
ascending order of the clients' losses, except for the worst-off clients' own; the mean of the
results is projected off those of absent clients, oldest first, and given the plain mean's length.
All of it happens in the coefficients over the displacements (Gram matrix).

Where we depart: `window` "paper" protects the clients that were absent for 1 to tau rounds; the
published code looks at ages tau-1 to 0 after the cohort was remembered ("code"), so that its
default tau = 1 protects nobody who is absent. A zero displacement is in conflict with nobody, and
a direction that the projections leave nothing of is replaced by the mean: the code divides by
both lengths. When nobody is in conflict the step is the uniform mean itself, bit for bit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from common.geometry import combine, length
from common.layout import Layout
from common.methods.base import Method
from common.methods.history import History
from common.settings import setting
from common.types import LOSS_BEFORE, Cohort, Matrix, Step, Vector

# Rounds since the youngest displacement that a window protects.
YOUNGEST = {"paper": 1, "code": 0}

# A direction this short against the mean is nothing but rounding of the displacements.
VANISHED = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}

ROUNDING = 1e-9  # 10 * (1 - 0.7) is three clients, although it is a little more in floats


@dataclass(frozen=True)
class FedFV(Method[History]):
    """The uniform mean of displacements that no longer conflict, at the plain mean's length."""

    name: ClassVar[str] = "fedfv"
    source: ClassVar[str] = "Wang et al., IJCAI 2021"
    needs: ClassVar[tuple[str, ...]] = (LOSS_BEFORE,)

    alpha: float = setting(
        0.1,
        "share of the clients, those with the largest losses, whose updates are not projected",
        low=0,
        high=1,
    )
    tau: int = setting(1, "rounds for which an absent client is protected; 0 means none", low=0)
    window: str = setting(
        "paper",
        "which tau rounds: paper, those before this one; code, this one and those before it",
        choices=tuple(YOUNGEST),
    )

    @property
    def _ages(self) -> range:
        """Rounds since the displacements that the mean is projected off, oldest first."""
        youngest = YOUNGEST[self.window]
        return range(youngest + self.tau - 1, youngest - 1, -1)

    @property
    def _oldest(self) -> int:
        return self._ages[0] if self._ages else 0

    def init(self, layout: Layout) -> History:
        """Return an empty history."""
        return History()

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return how many clients the window's rounds and this one can hold."""
        return min(clients, cohort * (self._oldest + 1))

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats for each of them."""
        return layout.size * self.stored_clients(layout, clients, cohort)

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the products before and after, those made, and the coefficients."""
        rows = 1 + self.stored_clients(layout, clients, cohort)
        return 2 * rows * (2 * rows + 3 * (1 + cohort))

    def aggregate(self, cohort: Cohort, state: History, layout: Layout) -> Step[History]:
        """Project the conflicts away; remember the cohort."""
        joined = state.join(cohort, cohort.equal_shares, before=cohort.round - self._oldest)
        seen = joined.history.seen.entries
        ages = cohort.round - np.array([seen[client].round for client in joined.clients])
        gram = joined.products[1:, 1:]

        order = np.argsort(cohort.metric(LOSS_BEFORE), kind="stable")
        first_kept = self._first_kept(len(order))
        weights, within = _off_each_other(gram, order, first_kept)
        beyond = 0
        if cohort.round > self.tau:  # the code's t >= tau, where t counts from 0
            weights, beyond = _off_the_absent(gram, weights, ages, self._ages)

        report: dict[str, Any] = {
            "kept": [joined.clients[k] for k in sorted(order[first_kept:])],
            "conflicts": within,
            "conflicts_absent": beyond,
            "history": joined.absent,
            "cosine": 1.0,
        }
        if not within + beyond:
            return Step(joined.mean, joined.history, report)
        direction, report["cosine"] = _at_length(weights, joined.rows, joined.products)
        return Step(direction, joined.history, report)

    def _first_kept(self, m: int) -> int:
        """Return how many of m clients, from the smallest loss up, are projected."""
        return math.ceil((m - 1) * (1 - self.alpha) - ROUNDING) if self.alpha else m


def _off_each_other(gram: Matrix, order: Vector, first_kept: int) -> tuple[Vector, int]:
    """Return the mean's coefficients [k] after the cohort's projections, and how many there were.

    Args:
        gram: inner products [k, k] of the displacements, the cohort's m first.
        order: the cohort by ascending loss [m].
        first_kept: from there on in `order`, a displacement stays as it is.
    """
    coefficients, count = np.eye(len(order), len(gram)), 0
    for i in order[:first_kept]:
        own = coefficients[i]
        for j in order:
            product = float(gram[j] @ own)
            if j != i and product < 0 < gram[j, j]:
                own[j] -= product / gram[j, j]
                count += 1
    weights: Vector = coefficients.sum(axis=0) / len(order)
    return weights, count


def _off_the_absent(
    gram: Matrix, weights: Vector, ages: Vector, window: range
) -> tuple[Vector, int]:
    """Project the mean off the sum of each round's displacements that conflict with it.

    Returns the coefficients [k], and how many displacements there were.
    """
    count = 0
    for age in sorted({*ages.tolist()}, reverse=True):  # oldest first
        if age not in window:
            continue
        against = ((ages == age) & (gram @ weights < 0)).astype(np.float64)
        square, product = against @ gram @ against, weights @ gram @ against
        if product < 0 < square:
            weights = weights - product / square * against
            count += int(against.sum())
    return weights, count


def _at_length(
    weights: Vector, rows: Sequence[Vector], products: Matrix
) -> tuple[Vector, float | None]:
    """Bring sum weights_k rows_{k+1} [d] to the length of row 0, the mean; return their cosine.

    Where nothing of the sum is left it is row 0 itself, and the cosine is None.
    """
    mean, target = rows[0], float(np.sqrt(products[0, 0]))
    # measured as it is: in the Gram matrix a short length drowns in rounding
    bent = combine(weights, rows[1:], dtype=mean.dtype)
    size = length(bent)
    if size <= VANISHED[mean.dtype] * target:
        return mean, None
    bent *= bent.dtype.type(target / size)
    cosine = float(weights @ products[1:, 0]) / (size * target) if target else None
    return bent, cosine
