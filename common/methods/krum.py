"""Krum: use only the displacements that lie close to most of the others.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017 (arXiv 1703.02757). With m displacements of which f may be hostile,
the score of a client is the sum of the squared distances to the m - f - 2 displacements closest to
its own. Krum takes the displacement with the smallest score. Multi-Krum takes the mean of the
displacements with the smallest scores.

Where we depart: the paper demands 2f + 2 < m. A round can lose clients. Then f is lowered to the
largest number that fulfils it, and a score has at least one neighbour. The paper aggregates
gradients of one step, and we aggregate displacements of several local steps. Clients count equally.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.geometry import inner_products
from common.layout import Layout
from common.methods.base import Method
from common.settings import setting
from common.types import Cohort, Matrix, Step, Vector

ROUNDING = 1e-9  # added to hostile m, because 0.29 * 100 is 28.999... in floating point


@dataclass(frozen=True)
class Krum(Method[None]):
    """The mean of the displacements with the smallest Krum scores."""

    name: ClassVar[str] = "krum"
    source: ClassVar[str] = "Blanchard et al., NeurIPS 2017"

    hostile: float = setting(
        0.2,
        "share of the cohort that may be hostile, f/m",
        low=0,
        high=0.5,
        open_high=True,
    )
    keep: int = setting(
        0, "number of displacements to average: 1 is Krum, 0 is Multi-Krum with m - f", low=0
    )

    def init(self, layout: Layout) -> None:
        """Krum has no state."""

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the inner products and the squared distances, in float64."""
        return 6 * cohort**2

    def aggregate(self, cohort: Cohort, state: None, layout: Layout) -> Step[None]:
        """Return the mean [d] of the displacements with the smallest scores."""
        deltas = [update.delta for update in cohort.updates]
        count = len(deltas)
        hostile = min(math.floor(self.hostile * count + ROUNDING), max((count - 3) // 2, 0))
        scores = krum_scores(inner_products(deltas, deltas), hostile)
        keep = min(self.keep or count - hostile, count)
        kept = np.argsort(scores, kind="stable")[:keep]
        shares = np.zeros(count)
        shares[kept] = 1 / keep
        report = {"weights": cohort.by_client(shares), "scores": cohort.by_client(scores)}
        return Step(cohort.mean(shares), None, report)


def krum_scores(products: Matrix, hostile: int) -> Vector:
    """Return each row's sum of squared distances to its m - f - 2 closest other rows [m].

    Args:
        products: inner products of the rows [m, m].
        hostile: number of hostile rows, f.

    >>> import numpy as np
    >>> rows = np.array([[0.0], [1.0], [2.0], [50.0]])
    >>> krum_scores(rows @ rows.T, hostile=0).tolist()
    [5.0, 2.0, 5.0, 4705.0]
    """
    squares = np.diag(products)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
    np.fill_diagonal(distances, -1.0)  # the row itself sorts first
    neighbours = max(len(products) - hostile - 2, 1)
    scores: Vector = np.sort(distances, axis=1)[:, 1 : neighbours + 1].sum(axis=1)
    return scores
