"""FedMGDA+: the shortest combination of the unit updates whose weights stay near FedAvg's.

Hu, Shaloudegi, Zhang, Yu. Federated Learning Meets Multi-objective Optimization. IEEE Transactions
on Network Science and Engineering, 2022 (arXiv 2006.11489).

With u_i the unit displacements of the cohort and p_i its shares of the examples, the direction is

    eta d,   d = sum_i lambda_i u_i,   lambda = argmin |sum_i lambda_i u_i|^2
    subject to  sum lambda_i = 1,  max(0, p_i - epsilon) <= lambda_i <= min(1, p_i + epsilon).

Where we depart:
- eta is a multiple of the round's local learning rate, so it decays with it.
- A zero displacement has no unit vector. It is left out, and p_i is taken over the others.
- A d that is zero up to rounding gives no step.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from common.geometry import (
    RESIDUAL_TOLERANCE,
    WORK_MATRICES,
    ZERO_LENGTH,
    combine,
    combined_length,
    inner_products,
    lengths_and_scales,
    min_norm_weights,
)
from common.layout import Layout
from common.methods.base import Method
from common.settings import setting
from common.types import Cohort, Matrix, Step, Vector


@dataclass(frozen=True)
class FedMGDA(Method[None]):
    """Minimum-norm combination of the unit displacements, within epsilon of the shares."""

    name: ClassVar[str] = "fedmgda"
    source: ClassVar[str] = "Hu et al., IEEE TNSE 2022"

    epsilon: float = setting(
        0.1, "how far a client's weight may be from its share of the examples", low=0, high=1
    )
    eta_over_lr: float = setting(
        10.0, "global step in units of the round's local learning rate", low=0, open_low=True
    )
    rescale: bool = setting(
        False, "give the step the length of FedAvg's; eta-over-lr then has no effect"
    )

    def init(self, layout: Layout) -> None:
        """FedMGDA+ has no state."""

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the Gram matrix, the cosines, and the matrices of the solution."""
        return 2 * (3 + WORK_MATRICES) * cohort**2

    def aggregate(self, cohort: Cohort, state: None, layout: Layout) -> Step[None]:
        """Return eta d, or zero if d is zero."""
        rows = [update.delta for update in cohort.updates]
        products = inner_products(rows, rows)
        lengths, scale = lengths_and_scales(products)
        unit = products * np.outer(scale, scale)
        weights, report = self._weights(unit, cohort.shares * (lengths > 0))
        length = combined_length(weights, unit)
        size = self.eta_over_lr * cohort.local_lr
        if self.rescale and length:
            size = combined_length(cohort.shares, products) / length
        if length <= ZERO_LENGTH:
            size = 0.0
        report |= {"length_d": length, "weights": cohort.by_client(weights)}
        return Step(combine(size * weights * scale, rows), None, report)

    def _weights(self, unit: Matrix, shares: Vector) -> tuple[Vector, dict[str, Any]]:
        """Return lambda [m], zero where the share is zero, and the solution's report.

        Args:
            unit: cosines of the displacements [m, m].
            shares: the clients' shares of the examples [m], zero for clients to leave out.
        """
        weights, moved = np.zeros_like(shares), np.flatnonzero(shares)
        report: dict[str, Any] = {"left_out": len(shares) - moved.size}
        if not moved.size:
            return weights, report
        p = shares[moved] / shares[moved].sum()
        low, high = np.maximum(p - self.epsilon, 0), np.minimum(p + self.epsilon, 1)
        bounds = (low, high) if self.epsilon < 1 else ()
        answer = min_norm_weights(unit[np.ix_(moved, moved)], *bounds)
        trusted = answer.residual <= RESIDUAL_TOLERANCE
        weights[moved] = answer.weights if trusted else p
        return weights, report | {"trusted": trusted, "residual": answer.residual}
