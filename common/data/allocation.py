"""Integer arithmetic of partitions: no sample is lost and none is used twice."""

import heapq
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


def equal_runs(total: int, owners: int) -> Integers:
    """Return the owner of each of `total` positions, cut into runs of equal length (+- 1)."""
    sizes = np.full(owners, total // owners, dtype=np.int64)
    sizes[: total % owners] += 1
    return np.repeat(np.arange(owners), sizes)


def by_owner(owner: Integers, clients: int) -> list[Integers]:
    """Return the sorted indices that each client owns, from `owner` [n]."""
    ends = np.bincount(owner, minlength=clients).cumsum()
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def deal_classes(labels: Integers, counts: Integers, rng: np.random.Generator) -> Integers:
    """Return the owner of each sample [n]: `counts` [classes, clients] of each class, at random."""
    owner = np.empty(len(labels), dtype=np.int64)
    for label, row in enumerate(counts):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(len(row)), row)
    return owner


def dirichlet_shares(rng: np.random.Generator, alpha: float, shape: tuple[int, ...]) -> Floats:
    """Draw from Dir(alpha) along the last axis, for any alpha > 0.

    Gamma(alpha) equals Gamma(alpha + 1) * U^(1/alpha). Logarithms, scaled by the largest one, avoid
    0/0 at small alpha.
    """
    logs = np.log(rng.standard_gamma(alpha + 1, shape))
    logs += np.log1p(-rng.random(shape)) / max(alpha, 1e-300)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def repair(counts: Integers, floor: int) -> None:
    """Move samples until every client (column of `counts`) has `floor`, in place."""
    sizes = counts.sum(axis=0)
    donors = [(-int(size), client) for client, size in enumerate(sizes) if size > floor]
    heapq.heapify(donors)
    for receiver in np.flatnonzero(sizes < floor):
        while sizes[receiver] < floor:
            negative, donor = heapq.heappop(donors)
            label = int(counts[:, donor].argmax())
            moved = min(floor - int(sizes[receiver]), -negative - floor, int(counts[label, donor]))
            counts[label, donor] -= moved
            counts[label, receiver] += moved
            sizes[receiver] += moved
            if -negative - moved > floor:
                heapq.heappush(donors, (negative + moved, donor))


def whole(shares: Floats, sizes: Integers) -> Integers:
    """Round shares * sizes [n, k] to integers with the sums `sizes` [n] (largest remainders)."""
    exact = shares * sizes[:, None]
    floors = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(floors - exact, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(floors + (rank < (sizes - floors.sum(axis=1))[:, None]))


def substitute(wanted: Integers, missing: int, left: Integers) -> Integers:
    """Take `missing` samples out of `left` [classes] in place, from wanted classes first."""
    taken = np.zeros_like(left)
    while missing:
        weights = np.where(left > 0, wanted, 0)
        if not weights.any():
            weights = np.arange(len(left)) == left.argmax()
        share = whole((weights / weights.sum())[None], np.array([missing]))[0]
        share = np.minimum(share, left)
        taken += share
        left -= share
        missing -= int(share.sum())
    return taken
