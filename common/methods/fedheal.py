"""FedHEAL: drop coordinates that contradict a client's past, weigh clients by their distance.

Chen, Huang, Ye. Fair Federated Learning under Domain Skew with Local Consistency and Domain
Diversity. CVPR 2024 (arXiv 2405.16585), on top of FedAvg. A coordinate of a client's displacement
counts if its sign was the same in more than `threshold` of the client's earlier rounds. Clients are
weighted by P_i, which grows with momentum by the length of the counting coordinates.

Where we depart:
- The published code indexes its history by the global round and stops in the first one. Here k is
  the number of the client's own rounds.
- Shares are taken over the round's participants. P_i starts at 1/m in a client's first round, and
  absent clients keep theirs. P_i grows with every participation, so frequent clients gain weight.
- Signs are stored as whole counts instead of running means, so that comparisons with the threshold
  are exact.
- If no coordinate of any displacement counts, P_i and dP_i stay and the step is zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from common.client_vectors import ClientVectors
from common.geometry import length
from common.layout import Layout
from common.methods.base import Method
from common.methods.momentum import Momentum
from common.settings import setting
from common.types import ClientId, ClientUpdate, Cohort, Step, Vector

# Counts of a client stop here, because a larger one does not fit into uint16.
MAX_ROUNDS = 65_535


@dataclass(frozen=True)
class SignCounts:
    """The state of FedHEAL: sign counts and weights of every client seen so far.

    Attributes:
        positive: number of rounds in which each coordinate was at least 0 [d], uint16, by client.
        rounds: number of rounds of each client, up to `MAX_ROUNDS`.
        momentum: the clients' weights, not normalised.
    """

    positive: ClientVectors = field(default_factory=ClientVectors)
    rounds: dict[ClientId, int] = field(default_factory=dict)
    momentum: Momentum = field(default_factory=Momentum)


@dataclass(frozen=True)
class FedHEAL(Method[SignCounts]):
    """The mean of the counting coordinates, weighted by distance with momentum."""

    name: ClassVar[str] = "fedheal"
    source: ClassVar[str] = "Chen, Huang, Ye, CVPR 2024"

    threshold: float = setting(
        0.3,
        "share of a client's rounds that must agree with a coordinate's sign, exclusive",
        low=0,
        high=1,
    )
    beta: float = setting(0.4, "rate at which the clients' weights grow in a round", low=0, high=1)

    def init(self, layout: Layout) -> SignCounts:
        """Return a state without clients."""
        return SignCounts()

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return N: every client can have sign counts."""
        return clients

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return half a float for each of every client's d counts."""
        return clients * ((layout.size + 1) // 2)

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the cohort's new counts, besides the old ones, and the mean."""
        return (cohort // 2 + 4) * layout.size

    def aggregate(self, cohort: Cohort, state: SignCounts, layout: Layout) -> Step[SignCounts]:
        """Mask the displacements, weigh the clients, average, and count the signs."""
        lengths, parts = {}, {}
        for update, mask in self._masks(cohort, state):
            lengths[update.client] = _distance(update.delta * mask, layout)
            parts[update.client] = float(mask.mean())
        total_length, m = sum(lengths.values()), len(lengths)
        momentum = state.momentum
        if total_length > 0:
            shares = {client: length / total_length for client, length in lengths.items()}
            momentum = momentum.updated(shares, self.beta, start=1 / m)
        unnormalised = [momentum.weights.get(client, 1 / m) for client in lengths]
        weights = cohort.by_client(np.array(unnormalised) / sum(unnormalised))

        first = cohort.updates[0].delta
        total, weight = np.zeros_like(first), np.zeros_like(first)
        for update, mask in self._masks(cohort, state):  # again, so that m masks need no memory
            share = first.dtype.type(weights[update.client])
            weight += share * mask
            total += share * (update.delta * mask)
        direction = np.divide(total, weight, out=np.zeros_like(first), where=weight > 0)
        report = {"weights": weights, "counted": parts}
        return Step(direction, _add_signs(cohort, state, momentum), report)

    def _masks(self, cohort: Cohort, state: SignCounts) -> Iterator[tuple[ClientUpdate, Vector]]:
        """Pair each update with its mask [d], true where its sign agrees with enough rounds."""
        for update in cohort.updates:
            positive, k = state.positive.get(update.client), state.rounds.get(update.client, 0)
            if positive is None:
                yield update, np.ones(update.delta.shape, dtype=bool)
                continue
            # The smallest count whose share of k is above the threshold, compared as floats.
            enough = np.count_nonzero(np.arange(k + 1) / k <= self.threshold)
            agreeing = np.where(update.delta >= 0, positive, np.uint16(k) - positive)
            yield update, agreeing >= enough


def _distance(masked: Vector, layout: Layout) -> float:
    """Return the sum over the model's tensors of the length of the masked displacement [d]."""
    return sum(length(masked[span]) for span in layout.spans.values())


def _add_signs(cohort: Cohort, state: SignCounts, momentum: Momentum) -> SignCounts:
    """Return the state with the cohort's signs added to the counts."""
    counts, rounds = {}, {}
    for update in cohort.updates:
        client, k = update.client, state.rounds.get(update.client, 0)
        positive = state.positive.get(client)
        if positive is None:
            counts[client] = (update.delta >= 0).astype(np.uint16)
        else:
            counts[client] = positive + (update.delta >= 0) if k < MAX_ROUNDS else positive
        rounds[client] = min(k + 1, MAX_ROUNDS)
    return SignCounts(state.positive.put(cohort.round, counts), state.rounds | rounds, momentum)
