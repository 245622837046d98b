"""Sampling of a round's clients: a pure function of seed, round and client ids."""

from collections.abc import Iterable

from common.rng import stream
from common.types import ClientId, by_client


def sample_clients(
    clients: Iterable[ClientId],
    size: int,
    *,
    seed: int,
    round: int,  # noqa: A002
) -> list[ClientId]:
    """Return `size` of the clients, uniformly without replacement, sorted.

    The order of `clients` does not matter. All methods get the same cohorts, and a resumed run
    gets the cohorts of an uninterrupted one.
    """
    ordered = sorted(clients, key=by_client)
    size = min(size, len(ordered))
    picks = stream(seed, "cohort", round).choice(len(ordered), size, replace=False)
    return [ordered[i] for i in sorted(picks)]
