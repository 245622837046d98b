"""FedPW: drop the smallest parts of each update, and weigh clients by loss and by agreement.

Guan, Huang, Guo, Yuan, Yang, Ye. Rethinking Fair Federated Learning from Parameter and Client
View. NeurIPS 2025 (OpenReview dY29IUPTuy), after the published code (guankaiqi/FedPW). Two sets of
weights grow with momentum: p by the clients' shares of the loss on the way, q by how far each
displacement points where all of them do. From the second round on, the smallest entries of each
tensor are dropped, more of them for clients with small losses, and the entries of the mean on
which the clients agree best are enlarged by as much as was dropped on average.

Where we depart: the code needs every client in every round. Here p and q belong to client ids,
those of absent clients stay, both are divided by their sum over all that were ever seen (the
code's rule where nobody is absent), and once more over the participants where they weigh a step.
Divisions that the code leaves open:
- displacements that cancel agree equally, and so count participants whose p or q do not add up
  to something positive; where the sum over all clients does not, p or q stay as they were;
- the levels of loss and agreement that momentum is measured by are those of the first round in
  which they are not 0; a loss counts as 1e-12 at least in a ratio;
- a client of whose tensor nothing is dropped adds 0 to what was dropped on average (the code then
  enlarges nothing); with one client, or where a client's tensor is 0, nothing is enlarged.
The agreement of a column of unit length is told by its mean's square, which orders columns as
their standard deviation does; it never needs more than one tensor of all clients at a time.
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

LEAST_LOSS, MOST_LOSS = 1e-12, 1e12  # in ratios; anywhere
ROUNDING = 1e-12  # a sum this small against what was added is not known to be positive
WHOLE = 1e-9  # 5 * 0.6 is three entries, whatever the float says


@dataclass(frozen=True)
class MomentumWeights:
    """Weights of all clients by one measure, adding up to 1, and its level when it was first seen.

    Attributes:
        momentum: p and dp, or q and dq, by client.
        first: mean of the measure over the cohort, in the first round in which it was not 0.
    """

    momentum: Momentum = field(default_factory=Momentum)
    first: float = 0.0

    def after(self, shares: dict[ClientId, float], level: float, beta: float) -> "MomentumWeights":
        """Let these clients' weights grow by their shares, at the rate beta * level / first."""
        first = self.first or level
        grown = self.momentum.updated(shares, beta * level / first if first else beta)
        weights = _to_one(list(grown.weights.values()))
        if weights is None:
            return replace(self, first=first)
        return MomentumWeights(
            replace(grown, weights=dict(zip(grown.weights, weights, strict=True))), first
        )

    def among(self, clients: Sequence[ClientId]) -> Vector:
        """Return the weights of these clients alone [m], adding up to 1."""
        held = _to_one([self.momentum.weights.get(client, 0.0) for client in clients])
        return np.full(len(clients), 1.0) / len(clients) if held is None else np.array(held)


@dataclass(frozen=True)
class FedPWState:
    """What FedPW remembers: p by the losses, q by the agreement, and how many rounds there were."""

    losses: MomentumWeights = field(default_factory=MomentumWeights)
    agreement: MomentumWeights = field(default_factory=MomentumWeights)
    rounds: int = 0


@dataclass(frozen=True)
class FedPW(Method[FedPWState]):
    """Thin out the updates, mix two sets of weights, enlarge what the clients agree on."""

    name: ClassVar[str] = "fedpw"
    source: ClassVar[str] = "Guan et al., NeurIPS 2025"
    needs: ClassVar[tuple[str, ...]] = (LOSS,)

    beta: float = setting(0.3, "what a round adds to the clients' weights, at first", low=0, high=1)
    drop: float = setting(
        0.3, "share of each tensor's entries that is dropped, on average", low=0, high=1
    )
    stride: int = setting(
        10, "magnitudes are averaged over every so many entries; 10 as published, 1 all", low=1
    )

    def init(self, layout: Layout) -> FedPWState:
        """Return that nobody was seen."""
        return FedPWState()

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the cohort's products, a tensor thinned for each client, and what ranks it."""
        largest = max(tensor.size for tensor in layout.tensors)
        return 2 * 4 * cohort**2 + (cohort + 12) * largest

    def aggregate(self, cohort: Cohort, state: FedPWState, layout: Layout) -> Step[FedPWState]:
        """Update both sets of weights; average whole displacements first, thinned ones later."""
        clients = [update.client for update in cohort.updates]
        losses = np.clip(cohort.metric(LOSS), 0.0, MOST_LOSS)
        ratios = np.maximum(losses, LEAST_LOSS)
        shares, level = _agreement(cohort)
        by_loss = cohort.by_client(ratios / ratios.sum())
        by_agreement = cohort.by_client(shares)
        after = FedPWState(
            state.losses.after(by_loss, float(losses.mean()), self.beta),
            state.agreement.after(by_agreement, level, self.beta),
            state.rounds + 1,
        )
        weights, rho = _mixed(after.losses.among(clients), after.agreement.among(clients))
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
        """Return one tensor's step [s], and the factor on the entries that clients agree on.

        Args:
            parts: the clients' displacements there, m of [s].
            weights: w [m].
            rates: share of entries that each client drops [m].
        """
        size = parts[0].size
        thinned = [
            _thinned(part, math.floor(size * rate + WHOLE), self.stride)
            for part, rate in zip(parts, rates.tolist(), strict=True)
        ]
        rows = [row for row, _ in thinned]
        dropped = sum(magnitude for _, magnitude in thinned) / len(rows)
        step = combine(weights, rows, dtype=parts[0].dtype)
        best = _best(rows, math.floor(size * self.drop + WHOLE))
        left = float(np.abs(step[best[:: self.stride]]).mean(dtype=np.float64)) if best.size else 0
        if not dropped < left:
            return step, 1.0
        step[best] *= step.dtype.type(1 + dropped / left)
        return step, 1 + dropped / left


def _to_one(values: Sequence[float]) -> list[float] | None:
    """Divide by the sum; None unless that is positive, finite, and more than rounding."""
    total = sum(values)  # plain floats pass infinity without a warning, and fail here
    if not ROUNDING * sum(map(abs, values)) < total:
        return None
    return [value / total for value in values]


def _agreement(cohort: Cohort) -> tuple[Vector, float]:
    """Return u [m], each client's share of |sum Delta|^2, and that square over m.

    Displacements whose sum cannot be told from 0 have equal shares and the level 0.
    """
    deltas = [update.delta for update in cohort.updates]
    products = inner_products(deltas, deltas)
    along = products.sum(axis=1)
    total = float(along.sum())
    if total <= ROUNDING * float(np.trace(products)):
        return cohort.equal_shares, 0.0
    return along / total, total / len(deltas)


def _mixed(p: Vector, q: Vector) -> tuple[Vector, float | None]:
    """Return w = rho p + (1 - rho) q [m] with rho = std(p) / (std(p) + std(q)), and rho."""
    spread_p, spread_q = float(p.std()), float(q.std())
    if spread_p + spread_q == 0:
        return p, None  # both are 1/m; one client among them
    rho = spread_p / (spread_p + spread_q)
    return rho * p + (1 - rho) * q, rho


def _thinned(part: Vector, count: int, stride: int) -> tuple[Vector, float]:
    """Zero the `count` smallest entries [s], of equal ones the first.

    Returns the rest, and the mean magnitude of every `stride`-th dropped entry in ascending order.
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


def _best(rows: Sequence[Vector], count: int) -> Vector:
    """Return the `count` columns on which the clients agree best, the best first.

    Rows, then columns, are brought to unit length; of columns x [m] of unit length the sample
    variance is (1 - (sum x)^2 / m) / (m - 1). Columns of zeros come last. None are returned for one
    client, and where a client has nothing left.
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
