"""FedHEAL: drop what a client's past does not confirm, and weigh clients by how far they move.

Chen, Huang, Ye. Fair Federated Learning under Domain Skew with Local SignCounts and Domain
Diversity. CVPR 2024 (arXiv 2405.16585), on top of FedAvg. A coordinate of a client's displacement
counts if its sign was the same in more than `threshold` of the rounds that the client took part
in before; clients weigh P_i, which grows with the length of what counts, with momentum.

Where we depart: the published code indexes its history by the global round and stops in the first
one; here k is the number of the client's own participations, shares are those of the round's
participants, P_i starts at 1/m in a client's first round, and absent clients keep what they have.
P_i grows with every participation, so clients that come often gain weight. Signs are kept as whole
counts, not as running means, so that comparisons with the threshold are exact. When nothing of any
displacement counts, P_i and dP_i stay as they are and no step is taken.
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

# A client's past ends here: its counts would not fit their uint16, and stay as they then are.
MOST_ROUNDS = 65_535


@dataclass(frozen=True)
class SignCounts:
    """What is known of every client that was seen.

    Attributes:
        positive: in how many rounds each coordinate was at least 0 [d], uint16.
        rounds: in how many rounds the client took part, as far as they were counted.
        momentum: the clients' weights, not normalised.
    """

    positive: ClientVectors = field(default_factory=ClientVectors)
    rounds: dict[ClientId, int] = field(default_factory=dict)
    momentum: Momentum = field(default_factory=Momentum)


@dataclass(frozen=True)
class FedHEAL(Method[SignCounts]):
    """The mean of what counts, coordinate by coordinate, weighted by distance with momentum."""

    name: ClassVar[str] = "fedheal"
    source: ClassVar[str] = "Chen, Huang, Ye, CVPR 2024"

    threshold: float = setting(
        0.3,
        "share of a client's rounds that must agree with a coordinate's sign, exclusive",
        low=0,
        high=1,
    )
    beta: float = setting(0.4, "what a round adds to the clients' weights", low=0, high=1)

    def init(self, layout: Layout) -> SignCounts:
        """Return that nobody was seen."""
        return SignCounts()

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return that the signs of every client can be counted."""
        return clients

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return half a float for each of every client's d counts."""
        return clients * ((layout.size + 1) // 2)

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the cohort's new counts, beside which the old ones are still there, and a mean."""
        return (cohort // 2 + 4) * layout.size

    def aggregate(self, cohort: Cohort, state: SignCounts, layout: Layout) -> Step[SignCounts]:
        """Mask the displacements, weigh the clients, average; count the cohort's signs."""
        lengths, parts = {}, {}
        for update, mask in self._masked(cohort, state):
            lengths[update.client] = _distance(update.delta * mask, layout)
            parts[update.client] = float(mask.mean())
        whole, m = sum(lengths.values()), len(lengths)
        momentum = state.momentum
        if whole > 0:
            shares = {client: length / whole for client, length in lengths.items()}
            momentum = momentum.updated(shares, self.beta, start=1 / m)
        held = [momentum.weights.get(client, 1 / m) for client in lengths]
        weights = cohort.by_client(np.array(held) / sum(held))

        first = cohort.updates[0].delta
        total, weight = np.zeros_like(first), np.zeros_like(first)
        for update, mask in self._masked(cohort, state):  # again: m masks are not kept
            share = first.dtype.type(weights[update.client])
            weight += share * mask
            total += share * (update.delta * mask)
        direction = np.divide(total, weight, out=np.zeros_like(first), where=weight > 0)
        report = {"weights": weights, "counted": parts}
        return Step(direction, _counted(cohort, state, momentum), report)

    def _masked(self, cohort: Cohort, state: SignCounts) -> Iterator[tuple[ClientUpdate, Vector]]:
        """Pair each update with its mask [d], true where its sign is that of enough rounds."""
        for update in cohort.updates:
            positive, k = state.positive.get(update.client), state.rounds.get(update.client, 0)
            if positive is None:
                yield update, np.ones(update.delta.shape, dtype=bool)
                continue
            # the least count whose share of k is above the threshold, as floats compare
            enough = np.count_nonzero(np.arange(k + 1) / k <= self.threshold)
            agreeing = np.where(update.delta >= 0, positive, np.uint16(k) - positive)
            yield update, agreeing >= enough


def _distance(masked: Vector, layout: Layout) -> float:
    """Return the sum over the model's tensors of the lengths of what counts."""
    return sum(length(masked[span]) for span in layout.spans.values())


def _counted(cohort: Cohort, state: SignCounts, momentum: Momentum) -> SignCounts:
    """Add the cohort's signs to what was counted."""
    counts, rounds = {}, {}
    for update in cohort.updates:
        client, k = update.client, state.rounds.get(update.client, 0)
        positive = state.positive.get(client)
        if positive is None:
            counts[client] = (update.delta >= 0).astype(np.uint16)
        else:
            counts[client] = positive + (update.delta >= 0) if k < MOST_ROUNDS else positive
        rounds[client] = min(k + 1, MOST_ROUNDS)
    return SignCounts(state.positive.put(cohort.round, counts), state.rounds | rounds, momentum)
