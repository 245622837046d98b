"""FedPCD: change FedAvg's direction only as far as every client in the history needs.

Irshaid, Varam, AlHajri. FedPCD: Priority-Constrained Federated Aggregation. Preprint, 2026.

With u_0 the unit mean of the cohort and u_k the unit displacements of the cohort and of every
client seen in the last `history` rounds, the direction is the projection

    x* = argmin 1/2 ||x - u_0||^2   subject to   u_k . x >= tau ||u_k||^2  for all k,

scaled to the length of the mean. The program is solved in the space of the m constraints, from
their Gram matrix. The d-dimensional program is never formed.

Where we depart:
- Unit vectors are exact, v / |v|. The page adds an unstated epsilon. A zero v constrains nothing.
- If no constraint is violated, the step is the mean itself, bit for bit.
- If no direction satisfies all constraints, or rounding makes the multipliers uncertain, the step
  is FedAvg's, as in the parent method. The record says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from common.errors import ConfigError
from common.geometry import (
    RESIDUAL_TOLERANCE,
    WORK_MATRICES,
    ZERO_LENGTH,
    check_solver,
    combine,
    combined_length,
    lengths_and_scales,
    solve_dual,
)
from common.layout import Layout
from common.methods.base import Method
from common.methods.history import History
from common.settings import setting
from common.types import Cohort, Matrix, Step, Vector


@dataclass(frozen=True)
class FedPCD(Method[History]):
    """Project the unit mean onto the half-spaces of all clients in the history."""

    name: ClassVar[str] = "fedpcd"
    source: ClassVar[str] = "Irshaid, Varam, AlHajri, 2026"

    tau: float = setting(
        0.02, "share of its own unit step that each client must gain", low=0, high=1
    )
    history: int = setting(
        10, "rounds for which an absent client is still protected; 0 means the cohort alone", low=0
    )
    normalise: bool = setting(True, "use unit vectors; false compares raw gradients (an ablation)")
    primary: bool = setting(True, "stay near FedAvg; false takes the shortest step (an ablation)")
    solver: str = setting(
        "osqp", 'a QP solver that qpsolvers finds, or "exact" for the active-set method alone'
    )

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Yield a problem if the solver is not installed. The default one always is."""
        if self.solver != FedPCD.solver:
            try:
                check_solver(self.solver)
            except ConfigError as error:
                yield f"fedpcd.solver: {error}"

    def init(self, layout: Layout) -> History:
        """Return an empty history.

        Raises:
            ConfigError: the solver is not installed.
        """
        check_solver(self.solver)
        return History()

    @property
    def history_rounds(self) -> int:
        """The history H in rounds."""
        return self.history

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return how many clients H + 1 rounds can hold."""
        return min(clients, cohort * (self.history + 1))

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats for each of them."""
        return layout.size * self.stored_clients(layout, clients, cohort)

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the Gram matrix before, after and scaled, and those of the program."""
        return 2 * (3 + WORK_MATRICES) * (1 + self.stored_clients(layout, clients, cohort)) ** 2

    def aggregate(self, cohort: Cohort, state: History, layout: Layout) -> Step[History]:
        """Project the cohort's mean and store the cohort's displacements."""
        joined = state.join(cohort, cohort.shares, before=cohort.round - self.history)
        clients, history = joined.clients, joined.history

        rates = np.array([cohort.local_lr, *(history.rates[client] for client in clients)])
        weights, report = self._project(joined.products, rates)
        report |= {"rows": len(clients), "history": joined.absent}
        report["multipliers"] = {
            client: float(mu)
            for client, mu in zip(clients, report.pop("mu"), strict=True)
            if mu > 0
        }
        report["active"] = len(report["multipliers"])
        direction = joined.mean
        if weights is not None:
            dtype = direction.dtype
            direction = combine(
                weights, joined.rows, dtype=dtype, compute_dtype=joined.compute_dtype
            )
        return Step(direction, history, report)

    def _project(self, products: Matrix, rates: Vector) -> tuple[Vector | None, dict[str, Any]]:
        """Return the weights [1 + m] of mean and rows in the direction, None for the mean itself.

        Args:
            products: raw inner products [1 + m, 1 + m], the mean first.
            rates: local learning rates [1 + m]. They turn displacements into gradients if vectors
                are not normalised.

        Returns:
            The weights, and the record of the solution. Its "mu" are the multipliers [m].
        """
        lengths, scale = lengths_and_scales(products)
        if not self.normalise:
            scale = (lengths > 0) / rates
        scaled = np.outer(scale, scale)
        scaled *= products  # in place, because it can have a gigabyte
        gram, progress = scaled[1:, 1:], scaled[0, 1:] * self.primary
        target = float(lengths[0] * scale[0]) * self.primary
        answer = solve_dual(
            gram,
            self.tau * np.diag(gram) - progress,
            target_length=target,
            solver=self.solver,
        )
        # Near a conflict the multipliers grow without bound and float32 rows are too inexact.
        trusted = answer.feasible and answer.residuals.largest() <= RESIDUAL_TOLERANCE
        mu = answer.multipliers
        report: dict[str, Any] = {
            "mu": mu,
            "feasible": answer.feasible,
            "decided_by": answer.decided_by,
            "trusted": trusted,
            "residual": answer.residuals.largest(),
            "largest_multiplier": float(mu.max(initial=0.0)),
            "cosine": 1.0,
            "length_mean": float(lengths[0]),
            "length_before": float(
                lengths[0] * scale[0]
            ),  # of u_0, which is x* if no constraint is active
        }
        if not trusted or (self.primary and not mu.any()):
            return None, report

        weights = np.concatenate([[float(self.primary)], mu]) * scale
        length = combined_length(weights, products)
        # A vector of rounding errors must not be scaled up to the mean's length.
        if length <= ZERO_LENGTH * float(lengths[0] * scale[0]):
            return np.zeros_like(weights), report | {"cosine": None, "length_before": 0.0}
        report["length_before"] = length  # of x*, before the scaling
        gains = scaled[1:, :] @ np.divide(
            weights, scale, out=np.zeros_like(weights), where=scale > 0
        )
        report["least_gain"] = float(gains[np.diag(gram) > 0].min(initial=np.inf))
        if lengths[0] > 0:
            report["cosine"] = float(weights @ products[:, 0] / (length * lengths[0]))
        return weights * (lengths[0] / length), report
