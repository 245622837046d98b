"""CRAFT: layer by layer, the step nearest to the last one that gives every client its share.

Wang, Liu, Thuerey. CRAFT: Conflict-Resolved Aggregation for Federated Training. 2026
(arXiv 2605.21317), and its published code.

With U the unit displacements of a layer [m, d_q], rho the clients' shares of the examples and r
the unit direction of the layer's last step (0 at first),

    d = r + U^+ (rho - U r),   theta <- theta - eta d.

d is the point nearest to r with u_i . d = rho_i for all i. If there is no such point it is the
least-squares answer. U^+ is computed from the m x m Gram matrix.

Where we depart: layers are found by names and shapes, because a layout knows no classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.geometry import combine, inner_products, lengths_and_scales
from common.layout import Layout
from common.methods.base import Granularity, Method
from common.settings import setting
from common.types import Cohort, Matrix, Step, Vector

RANK_TOLERANCE = 1e-10  # relative to the Gram matrix's largest eigenvalue
SHARE_TOLERANCE = 1e-6  # a larger |u_i . d - rho_i| is more than rounding


@dataclass(frozen=True)
class LastDirection:
    """The last d [d] before it is multiplied by eta. Zeros before round 1."""

    direction: Vector


@dataclass(frozen=True)
class Craft(Method[LastDirection]):
    """The direction whose inner product with each unit displacement is the client's share."""

    name: ClassVar[str] = "craft"
    source: ClassVar[str] = "Wang, Liu, Thuerey, 2026"
    granularity: ClassVar[Granularity] = Granularity.TENSOR  # each layer gets its own length

    eta: float = setting(
        0.1, "global step; the lengths of the displacements have no effect", low=0, open_low=True
    )

    def init(self, layout: Layout) -> LastDirection:
        """Return a zero direction [d]."""
        return LastDirection(np.zeros(layout.size, np.float32))

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats for the last direction."""
        return layout.size

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return a layer's Gram matrix in its three forms, and d with its step."""
        return 2 * 9 * (1 + cohort) ** 2 + 3 * layout.size

    def aggregate(
        self, cohort: Cohort, state: LastDirection, layout: Layout
    ) -> Step[LastDirection]:
        """Solve each layer on its own and store the direction."""
        deltas = [update.delta for update in cohort.updates]
        direction = np.zeros_like(deltas[0])
        gaps = []
        for span in layout.layers(norms_join=True):
            rows = [*(delta[span] for delta in deltas), state.direction[span]]
            weights, gap = _solve_layer(inner_products(rows, rows), cohort.shares)
            direction[span] = combine(weights, rows, dtype=direction.dtype)
            gaps.append(gap)
        report = {"layers": len(gaps), "unmet": sum(gap > SHARE_TOLERANCE for gap in gaps)}
        return Step(self.eta * direction, LastDirection(direction), report)


def _solve_layer(products: Matrix, shares: Vector) -> tuple[Vector, float]:
    """Return the weights [m + 1] of a layer's rows in d, and the largest |u_i . d - rho_i|.

    Args:
        products: inner products [m + 1, m + 1] of the displacements and, last, of the layer's last
            d.
        shares: the clients' shares of the examples [m].
    """
    m = len(shares)
    lengths, scale = lengths_and_scales(products)
    moved = np.flatnonzero(lengths[:m])
    weights = np.zeros(m + 1)
    if moved.size <= 1:
        weights[moved] = 1.0  # the displacement itself, as in the published code
        return weights, 0.0
    unit = products * np.outer(scale, scale)
    gram, along = unit[np.ix_(moved, moved)], unit[moved, m]
    target = shares[moved] / shares[moved].sum()
    coefficients = np.linalg.pinv(gram, rcond=RANK_TOLERANCE, hermitian=True) @ (target - along)
    weights[moved] = coefficients * scale[moved]
    weights[m] = scale[m]
    return weights, float(np.abs(gram @ coefficients + along - target).max())
