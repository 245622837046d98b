"""CRAFT: layer by layer, the step nearest to the last one that gives every client its due.

Wang, Liu, Thuerey. CRAFT: Conflict-Resolved Aggregation for Federated Training. 2026
(arXiv 2605.21317), and its published code.

With U the unit displacements of a layer [m, d_q], rho the clients' shares of the examples and r
the unit direction of the layer's last step (0 at first),

    d = r + U^+ (rho - U r),   theta <- theta - eta d:

the point nearest to r with u_i . d = rho_i for all i, or the least-squares answer where there is
none. U^+ is taken from the m x m Gram matrix.

Where we depart: layers are told by names and shapes, since a layout knows no classes; the
published code's uniform shares for clients without examples cannot arise.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.geometry import combine, inner_products, lengths_and_scales
from common.layout import Layout
from common.methods.base import Granularity, Method
from common.settings import setting
from common.types import Cohort, Matrix, Step, Vector

NEGLIGIBLE = 1e-10  # of the Gram matrix's largest eigenvalue: what counts as zero
MISSED = 1e-6  # distance of u_i . d from rho_i that is more than rounding


@dataclass(frozen=True)
class LastDirection:
    """The last d [d], before it was multiplied by eta; zeros before round 1."""

    direction: Vector


@dataclass(frozen=True)
class Craft(Method[LastDirection]):
    """Solve for the direction whose product with each unit displacement is the client's share."""

    name: ClassVar[str] = "craft"
    source: ClassVar[str] = "Wang, Liu, Thuerey, 2026"
    granularity: ClassVar[Granularity] = Granularity.TENSOR  # each layer gets its own length

    eta: float = setting(
        0.1, "global step; lengths of the displacements do not count", low=0, open_low=True
    )

    def init(self, layout: Layout) -> LastDirection:
        """Return no direction."""
        return LastDirection(np.zeros(layout.size, np.float32))

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats."""
        return layout.size

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return a layer's products, as they are, scaled and inverted, and d with its step."""
        return 2 * 9 * (1 + cohort) ** 2 + 3 * layout.size

    def aggregate(
        self, cohort: Cohort, state: LastDirection, layout: Layout
    ) -> Step[LastDirection]:
        """Solve each layer by itself; remember what came out."""
        deltas = [update.delta for update in cohort.updates]
        direction = np.zeros_like(deltas[0])
        missed = []
        for span in layout.layers(norms_join=True):
            rows = [*(delta[span] for delta in deltas), state.direction[span]]
            weights, gap = _solved(inner_products(rows, rows), cohort.shares)
            direction[span] = combine(weights, rows, dtype=direction.dtype)
            missed.append(gap)
        report = {"layers": len(missed), "unmet": sum(gap > MISSED for gap in missed)}
        return Step(self.eta * direction, LastDirection(direction), report)


def _solved(products: Matrix, shares: Vector) -> tuple[Vector, float]:
    """Return the weights [m + 1] of a layer's rows in its d, and the most that a due is missed by.

    `products` [m + 1, m + 1] are of the displacements and, last, of the layer's last d.
    """
    m = len(shares)
    lengths, scale = lengths_and_scales(products)
    moved = np.flatnonzero(lengths[:m])
    weights = np.zeros(m + 1)
    if moved.size <= 1:
        weights[moved] = 1.0  # as it is, not at unit length
        return weights, 0.0
    unit = products * np.outer(scale, scale)
    gram, along = unit[np.ix_(moved, moved)], unit[moved, m]
    due = shares[moved] / shares[moved].sum()
    pulls = np.linalg.pinv(gram, rcond=NEGLIGIBLE, hermitian=True) @ (due - along)
    weights[moved] = pulls * scale[moved]
    weights[m] = scale[m]
    return weights, float(np.abs(gram @ pulls + along - due).max())
