"""How far a step goes in each client's own direction, and how many clients a history holds."""

from collections.abc import Sequence

import numpy as np

from common.geometry import inner_products, length
from common.types import Vector


def cosines_with(direction: Vector, vectors: Sequence[Vector]) -> list[float | None]:
    """Return the cosine of a direction [d] with each vector [d]; None where either is zero."""
    products = inner_products([direction], vectors)[0].tolist()
    norm, lengths = length(direction), [length(vector) for vector in vectors]
    return [
        float(np.clip(product / (norm * size), -1.0, 1.0)) if norm * size > 0 else None
        for product, size in zip(products, lengths, strict=True)
    ]


def expected_occupancy(clients: int, share: float, rounds: int) -> float:
    """Return how many different clients take part in some rounds, in expectation.

    N (1 - (1 - rho)^rounds); a history of H rounds spans H + 1 of them (FedPCD's page).

    Args:
        clients: of the federation, N.
        share: of them, drawn in every round independently of the others: rho.
        rounds: how many rounds.
    """
    return clients * (1 - (1 - share) ** rounds)
