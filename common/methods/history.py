"""History: the last displacements of clients, and their inner products.

A method that compares the cohort with clients that are absent works on the small matrix of inner
products. What was remembered is not multiplied again: a round costs (new rows) x (all rows) x d,
and not (all rows)^2 x d.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from common.geometry import inner_products
from common.store import ClientVectors
from common.types import ClientId, Cohort, Matrix, Vector


@dataclass(frozen=True)
class Joined:
    """The cohort beside the absent clients that are remembered, and what to remember next.

    Attributes:
        clients: of the displacements, the cohort's first [k].
        rows: the mean, then the clients' displacements in that order [1 + k], each [d].
        products: raw inner products of the rows [1 + k, 1 + k].
        absent: how many of the clients are not in the cohort; they are the last.
        history: the cohort and these absent clients.
    """

    clients: Sequence[ClientId]
    rows: Sequence[Vector]
    products: Matrix
    absent: int
    history: "History"


@dataclass(frozen=True)
class History:
    """The last displacement of every client seen lately, and their inner products.

    Attributes:
        seen: displacement [d] and round by client.
        rates: the local learning rate that each displacement was made with.
        products: raw inner products [k, k] of the displacements, in the order of `seen`.
    """

    seen: ClientVectors = field(default_factory=ClientVectors)
    rates: dict[ClientId, float] = field(default_factory=dict)
    products: Matrix = field(default_factory=lambda: np.zeros((0, 0)))

    def without(self, clients: Sequence[ClientId], before: int) -> "History":
        """Return the entries of other clients that were seen in round `before` or later."""
        order = list(self.seen.entries)
        young = self.seen.since(before).entries
        kept = [c for c in order if c in young and c not in set(clients)]
        index = [order.index(client) for client in kept]
        return History(
            ClientVectors({client: self.seen.entries[client] for client in kept}),
            {client: self.rates[client] for client in kept},
            self.products[np.ix_(index, index)],
        )

    def with_cohort(self, cohort: Cohort, order: Sequence[ClientId], products: Matrix) -> "History":
        """Add the cohort; `products` [k, k] are of all displacements, in the given order."""
        seen = self.seen.put(cohort.round, {u.client: u.delta for u in cohort.updates})
        index = [list(order).index(client) for client in seen.entries]
        rates = self.rates | {update.client: cohort.local_lr for update in cohort.updates}
        ordered = {client: rates[client] for client in seen.entries}
        return History(seen, ordered, products[np.ix_(index, index)])

    def join(self, cohort: Cohort, mean: Vector, before: int) -> Joined:
        """Put the cohort and its mean beside what is remembered of others since round `before`.

        Args:
            cohort: the round's replies; what was remembered of these clients is left out.
            mean: any mean of theirs [d].
            before: the round of the oldest displacement that still counts.
        """
        present = [update.client for update in cohort.updates]
        absent = self.without(present, before)
        clients = [*present, *absent.seen.entries]
        new = [mean, *(update.delta for update in cohort.updates)]
        rows = [*new, *(entry.vector for entry in absent.seen.entries.values())]

        products = inner_products(new, rows)
        full = np.block([[products], [products[:, len(new) :].T, absent.products]])
        full = (full + full.T) / 2  # the two halves may differ in the last bit
        history = absent.with_cohort(cohort, clients, full[1:, 1:])
        return Joined(clients, rows, full, len(absent.seen), history)
