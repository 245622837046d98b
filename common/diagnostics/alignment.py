"""Alignment of a step with each client's direction, and the expected size of a history."""

from collections.abc import Sequence

import numpy as np

from common.geometry import inner_products, length
from common.types import Vector


def cosines_with(direction: Vector, vectors: Sequence[Vector]) -> list[float | None]:
    """Return the cosine of a direction [d] with each vector [d], None if either is zero."""
    products = inner_products([direction], vectors)[0].tolist()
    norm, lengths = length(direction), [length(vector) for vector in vectors]
    return [
        float(np.clip(product / (norm * size), -1.0, 1.0)) if norm * size > 0 else None
        for product, size in zip(products, lengths, strict=True)
    ]


def expected_occupancy(clients: int, share: float, rounds: int) -> float:
    """Return the expected number of different clients that take part in a number of rounds.

    It is N (1 - (1 - rho)^rounds). A history of H rounds covers H + 1 rounds (FedPCD's page).

    Args:
        clients: number of clients of the federation, N.
        share: probability that a client is sampled in a round, rho, independent of other rounds.
        rounds: number of rounds.

    >>> expected_occupancy(100, 0.5, 2)
    75.0
    """
    return clients * (1 - (1 - share) ** rounds)
