"""FedPW: drop the smallest entries of each update, and weigh clients by loss and by agreement.

Guan, Huang, Guo, Yuan, Yang, Ye. Rethinking Fair Federated Learning from Parameter and Client
View. NeurIPS 2025 (OpenReview dY29IUPTuy), after the published code (guankaiqi/FedPW). Two sets of
weights grow with momentum: p by the clients' shares of the training loss, q by how far each
displacement points in the direction of all. From the second round on, the smallest entries of each
tensor are dropped, more of them for clients with small losses. The entries of the mean on which the
clients agree best are enlarged by as much as was dropped on average.

Where we depart: the code needs every client in every round. Here p and q belong to client ids, and
absent clients keep theirs. Both are divided by their sum over all clients seen so far, which is the
code's rule if no client is absent. In a step they are divided by their sum over the participants.
The code leaves some divisions by zero open:
- Displacements that cancel agree equally. If p or q of the participants have no positive sum, the
  participants weigh the same. If p or q of all clients have none, they stay as they were.
- The reference levels of loss and agreement are those of the first round in which they are not 0.
  A loss counts as at least 1e-12 in a ratio.
- A client with no dropped entry in a tensor adds 0 to the average of what was dropped. The code
  enlarges nothing then. With one client, or where a client's tensor is 0, nothing is enlarged.
The agreement of a column is computed from the square of its mean, which orders columns of unit
length as their standard deviation does. It needs one tensor of all clients at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from common.geometry import combine, inner_products, length
from common.layout import Layout
from common.methods.base import Method
from common.methods.momentum import Momentum
from common.settings import setting
from common.types import LOSS, ClientId, Cohort, Step, Vector

MIN_LOSS, MAX_LOSS = 1e-12, 1e12  # in ratios, and everywhere
ROUNDING = 1e-12  # a smaller sum, relative to its parts, may be zero or negative
COUNT_TOLERANCE = 1e-9  # 5 * 0.6 is 3 entries, although it may be less in floating point


@dataclass(frozen=True)
class MomentumWeights:
    """Weights of all clients by one measure, adding up to 1, and the measure's first level.

    Attributes:
        momentum: p and dp, or q and dq, by client.
        first: mean of the measure over the cohort, in the first round in which it was not 0.
    """

    momentum: Momentum = field(default_factory=Momentum)
    first: float = 0.0

    def after(self, shares: dict[ClientId, float], level: float, beta: float) -> "MomentumWeights":
        """Return the weights after they grew by the shares, at the rate beta * level / first.

        Args:
            shares: share by client, for the participants.
            level: mean of the measure over the cohort.
            beta: rate of growth in the first round.
        """
        first = self.first or level
        grown = self.momentum.updated(shares, beta * level / first if first else beta)
        weights = _normalise(list(grown.weights.values()))
        if weights is None:
            return replace(self, first=first)
        return MomentumWeights(
            replace(grown, weights=dict(zip(grown.weights, weights, strict=True))), first
        )

    def of_clients(self, clients: Sequence[ClientId]) -> Vector:
        """Return the weights of these clients alone [m], adding up to 1."""
        held = _normalise([self.momentum.weights.get(client, 0.0) for client in clients])
        return np.full(len(clients), 1.0) / len(clients) if held is None else np.array(held)


@dataclass(frozen=True)
class FedPWState:
    """The state of FedPW.

    Attributes:
        losses: the weights p, by the losses.
        agreement: the weights q, by the agreement.
        rounds: number of rounds so far.
    """

    losses: MomentumWeights = field(default_factory=MomentumWeights)
    agreement: MomentumWeights = field(default_factory=MomentumWeights)
    rounds: int = 0


@dataclass(frozen=True)
class FedPW(Method[FedPWState]):
    """Drop small entries, mix two sets of weights, enlarge the entries clients agree on."""

    name: ClassVar[str] = "fedpw"
    source: ClassVar[str] = "Guan et al., NeurIPS 2025"
    needs: ClassVar[tuple[str, ...]] = (LOSS,)

    beta: float = setting(
        0.3, "rate at which the clients' weights grow in the first round", low=0, high=1
    )
    drop: float = setting(
        0.3, "share of each tensor's entries that is dropped, on average", low=0, high=1
    )
    stride: int = setting(
        10, "magnitudes are averaged over every stride-th entry: 10 as published, 1 for all", low=1
    )

    def init(self, layout: Layout) -> FedPWState:
        """Return a state without clients."""
        return FedPWState()

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the Gram matrix, a tensor of each client, and the ranking of its entries."""
        largest = max(tensor.size for tensor in layout.tensors)
        return 2 * 4 * cohort**2 + (cohort + 12) * largest

    def aggregate(self, cohort: Cohort, state: FedPWState, layout: Layout) -> Step[FedPWState]:
        """Update both sets of weights. Average, from round 2 on without the dropped entries."""
        clients = [update.client for update in cohort.updates]
        losses = np.clip(cohort.metric(LOSS), 0.0, MAX_LOSS)
        ratios = np.maximum(losses, MIN_LOSS)
        shares, level = _agreement(cohort)
        by_loss = cohort.by_client(ratios / ratios.sum())
        by_agreement = cohort.by_client(shares)
        after = FedPWState(
            state.losses.after(by_loss, float(losses.mean()), self.beta),
            state.agreement.after(by_agreement, level, self.beta),
            state.rounds + 1,
        )
        weights, rho = _mix(after.losses.of_clients(clients), after.agreement.of_clients(clients))
        report = {
            "weights": cohort.by_client(weights),
            "negative": int((weights < 0).sum()),
            "rho": rho,
        }
        if not state.rounds:
            return Step(cohort.mean(weights), after, report)

        inverse = 1 / ratios
        rates = np.minimum(inverse / inverse.sum() * len(clients) * self.drop, 1.0)
        direction, enlarged = np.empty_like(cohort.updates[0].delta), 0
        for span in layout.spans.values():
            parts = [update.delta[span] for update in cohort.updates]
            direction[span], factor = self._tensor(parts, weights, rates)
            enlarged += factor > 1
        report |= {"drop": cohort.by_client(rates), "enlarged": enlarged}
        return Step(direction, after, report)

    def _tensor(
        self, parts: Sequence[Vector], weights: Vector, rates: Vector
    ) -> tuple[Vector, float]:
        """Return one tensor's step [s], and the factor of the entries that clients agree on.

        Args:
            parts: the clients' displacements in the tensor, m of [s].
            weights: weight of each client [m].
            rates: share of entries that each client drops [m].
        """
        size = parts[0].size
        thinned = [
            _drop_smallest(part, math.floor(size * rate + COUNT_TOLERANCE), self.stride)
            for part, rate in zip(parts, rates.tolist(), strict=True)
        ]
        rows = [row for row, _ in thinned]
        dropped = sum(magnitude for _, magnitude in thinned) / len(rows)
        step = combine(weights, rows, dtype=parts[0].dtype)
        best = _most_agreed(rows, math.floor(size * self.drop + COUNT_TOLERANCE))
        left = float(np.abs(step[best[:: self.stride]]).mean(dtype=np.float64)) if best.size else 0
        if not dropped < left:
            return step, 1.0
        step[best] *= step.dtype.type(1 + dropped / left)
        return step, 1 + dropped / left


def _normalise(values: Sequence[float]) -> list[float] | None:
    """Divide by the sum, or return None unless it is positive, finite and above rounding."""
    total = sum(values)  # plain floats, because numpy warns of infinity
    if not ROUNDING * sum(map(abs, values)) < total:
        return None
    return [value / total for value in values]


def _agreement(cohort: Cohort) -> tuple[Vector, float]:
    """Return u [m], each client's share of |sum Delta|^2, and |sum Delta|^2 / m.

    If the sum is zero up to rounding, the shares are equal and the level is 0.
    """
    deltas = [update.delta for update in cohort.updates]
    products = inner_products(deltas, deltas)
    along = products.sum(axis=1)
    total = float(along.sum())
    if total <= ROUNDING * float(np.trace(products)):
        return cohort.equal_shares, 0.0
    return along / total, total / len(deltas)


def _mix(p: Vector, q: Vector) -> tuple[Vector, float | None]:
    """Return w = rho p + (1 - rho) q [m] with rho = std(p) / (std(p) + std(q)), and rho."""
    spread_p, spread_q = float(p.std()), float(q.std())
    if spread_p + spread_q == 0:
        return p, None  # both are 1/m
    rho = spread_p / (spread_p + spread_q)
    return rho * p + (1 - rho) * q, rho


def _drop_smallest(part: Vector, count: int, stride: int) -> tuple[Vector, float]:
    """Set the `count` smallest entries to zero. Of equal entries the first ones are dropped.

    Args:
        part: a client's displacement in a tensor [s].
        count: number of entries to drop.
        stride: every stride-th dropped entry, in ascending order, enters the mean magnitude.

    Returns:
        The rest [s], and the mean magnitude of the dropped entries.
    """
    if not count:
        return part, 0.0
    sizes = np.abs(part)
    ascending = np.sort(sizes)
    edge = ascending[count - 1]
    below = sizes < edge
    at_edge = np.flatnonzero(sizes == edge)[: count - np.count_nonzero(below)]
    rest = part.copy()
    rest[below] = 0
    rest[at_edge] = 0
    return rest, float(ascending[:count:stride].mean(dtype=np.float64))


def _most_agreed(rows: Sequence[Vector], count: int) -> Vector:
    """Return the `count` columns on which the clients agree best, the best first.

    Rows, then columns, are scaled to unit length. For columns x [m] of unit length the sample
    variance is (1 - (sum x)^2 / m) / (m - 1). Columns of zeros come last. The result is empty for
    one client, and if a client's rows are all zero.

    Args:
        rows: the clients' displacements in a tensor, m of [s].
        count: number of columns to return.
    """
    lengths = [length(row) for row in rows]
    if len(rows) == 1 or min(lengths) == 0:
        return np.zeros(0, dtype=np.intp)
    sums, squares = np.zeros((2, rows[0].size))
    for row, size in zip(rows, lengths, strict=True):
        unit = row / np.float64(size)
        sums += unit
        squares += unit * unit
    disagreement = -np.divide(sums**2, squares, out=np.full_like(sums, -1.0), where=squares > 0)
    return np.argsort(disagreement, kind="stable")[:count]
