"""FedFV: project conflicting displacements off each other before they are averaged.

Wang, Fan, Qi, Wen, Wang, Yu. Federated Learning with Fair Averaging. IJCAI 2021 (arXiv
2104.14937), Algorithms 1 to 3:
1. Take the displacements in ascending order of the clients' losses. Project each one off the
   displacements that it conflicts with. The clients with the largest losses keep theirs.
2. Project the mean of the results off the displacements of absent clients, oldest round first.
3. Give the result the length of the plain mean.
All of this is computed on coefficients of the displacements, from their Gram matrix.

Where we depart:
- `window` "paper" protects clients that were absent for 1 to tau rounds. The published code checks
  ages tau-1 to 0 after it stored the cohort ("code"), so its default tau = 1 protects no absent
  client.
- A zero displacement conflicts with no client. If the projections leave only rounding, the step is
  the mean. The published code divides by both lengths.
- Without a conflict the step is the uniform mean itself, bit for bit.
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

# Age in rounds of the youngest displacement that a window protects.
YOUNGEST = {"paper": 1, "code": 0}

# A direction shorter than this, relative to the mean, is only rounding of the displacements.
VANISHED = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}

ROUNDING = 1e-9  # 10 * (1 - 0.7) is 3.0000000000000004 in floating point and means 3 clients


@dataclass(frozen=True)
class FedFV(Method[History]):
    """The uniform mean of displacements without their conflicts, at the plain mean's length."""

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
        "which tau rounds: paper, those before this one; code, this one and the ones before it",
        choices=tuple(YOUNGEST),
    )

    @property
    def _ages(self) -> range:
        """Ages in rounds of the displacements that the mean is projected off, oldest first."""
        youngest = YOUNGEST[self.window]
        return range(youngest + self.tau - 1, youngest - 1, -1)

    @property
    def _oldest(self) -> int:
        return self._ages[0] if self._ages else 0

    def init(self, layout: Layout) -> History:
        """Return an empty history."""
        return History()

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return how many clients the window and the current round can hold."""
        return min(clients, cohort * (self._oldest + 1))

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats for each of them."""
        return layout.size * self.stored_clients(layout, clients, cohort)

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the inner products before and after, the new ones, and the coefficients."""
        rows = 1 + self.stored_clients(layout, clients, cohort)
        return 2 * rows * (2 * rows + 3 * (1 + cohort))

    def aggregate(self, cohort: Cohort, state: History, layout: Layout) -> Step[History]:
        """Project the conflicts away and store the cohort's displacements."""
        joined = state.join(cohort, cohort.equal_shares, before=cohort.round - self._oldest)
        seen = joined.history.seen.entries
        ages = cohort.round - np.array([seen[client].round for client in joined.clients])
        gram = joined.products[1:, 1:]

        order = np.argsort(cohort.metric(LOSS_BEFORE), kind="stable")
        first_kept = self._first_kept(len(order))
        weights, conflicts = _project_off_each_other(gram, order, first_kept)
        absent_conflicts = 0
        if cohort.round > self.tau:  # the code's t >= tau, where t counts from 0
            weights, absent_conflicts = _project_off_absent(gram, weights, ages, self._ages)

        report: dict[str, Any] = {
            "kept": [joined.clients[k] for k in sorted(order[first_kept:])],
            "conflicts": conflicts,
            "conflicts_absent": absent_conflicts,
            "history": joined.absent,
            "cosine": 1.0,
        }
        if not conflicts + absent_conflicts:
            return Step(joined.mean, joined.history, report)
        direction, report["cosine"] = _scale_to_mean(weights, joined.rows, joined.products)
        return Step(direction, joined.history, report)

    def _first_kept(self, m: int) -> int:
        """Return how many of m clients, from the smallest loss up, are projected."""
        return math.ceil((m - 1) * (1 - self.alpha) - ROUNDING) if self.alpha else m


def _project_off_each_other(gram: Matrix, order: Vector, first_kept: int) -> tuple[Vector, int]:
    """Return the mean's coefficients [k] after the cohort's projections, and their number.

    Args:
        gram: inner products [k, k] of the displacements, the cohort's m first.
        order: the cohort's indices by ascending loss [m].
        first_kept: the displacements from this place of `order` on are not projected.
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


def _project_off_absent(
    gram: Matrix, weights: Vector, ages: Vector, window: range
) -> tuple[Vector, int]:
    """Project the mean off the sum of each round's displacements that conflict with it.

    Args:
        gram: inner products [k, k] of the displacements.
        weights: the mean's coefficients [k].
        ages: rounds since each displacement [k].
        window: the ages to project off.

    Returns:
        The new coefficients [k], and the number of displacements projected off.
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


def _scale_to_mean(
    weights: Vector, rows: Sequence[Vector], products: Matrix
) -> tuple[Vector, float | None]:
    """Scale sum weights_k rows_{k+1} [d] to the length of row 0, the mean, and return its cosine.

    If only rounding is left of the sum, the result is row 0 itself and the cosine is None.

    Args:
        weights: coefficients of the displacements [k].
        rows: the mean, then the displacements, 1 + k vectors [d].
        products: inner products of the rows [1 + k, 1 + k].
    """
    mean, target = rows[0], float(np.sqrt(products[0, 0]))
    # The Gram matrix cannot resolve a short length, so the vector itself is measured.
    projected = combine(weights, rows[1:], dtype=mean.dtype)
    size = length(projected)
    if size <= VANISHED[mean.dtype] * target:
        return mean, None
    projected *= projected.dtype.type(target / size)
    cosine = float(weights @ products[1:, 0]) / (size * target) if target else None
    return projected, cosine
