"""The integer arithmetic of dealing: samples are counted, moved and handed out, never lost."""

import heapq
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


def equal_runs(total: int, hands: int) -> Integers:
    """Return the owner of each of `total` places when they are cut into equal runs (+- 1)."""
    sizes = np.full(hands, total // hands, dtype=np.int64)
    sizes[: total % hands] += 1
    return np.repeat(np.arange(hands), sizes)


def by_owner(owner: Integers, clients: int) -> list[Integers]:
    """Return the sorted places of each owner in `owner` [n]."""
    ends = np.bincount(owner, minlength=clients).cumsum()
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def deal_classes(labels: Integers, counts: Integers, rng: np.random.Generator) -> Integers:
    """Deal each class at random, counts [classes, clients] of it to each client."""
    owner = np.empty(len(labels), dtype=np.int64)
    for label, row in enumerate(counts):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(len(row)), row)
    return owner


def dirichlet_shares(rng: np.random.Generator, alpha: float, shape: tuple[int, ...]) -> Floats:
    """Draw Dir(alpha) along the last axis, for any alpha > 0, without 0/0.

    In logarithms: Gamma(alpha) is Gamma(alpha + 1) * U^(1/alpha), and the largest one scales.
    """
    logs = np.log(rng.standard_gamma(alpha + 1, shape))
    logs += np.log1p(-rng.random(shape)) / max(alpha, 1e-300)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def repair(counts: Integers, floor: int) -> None:
    """Move samples in place until every client (column) has `floor`; columns hold enough for it."""
    sizes = counts.sum(axis=0)
    donors = [(-int(size), client) for client, size in enumerate(sizes) if size > floor]
    heapq.heapify(donors)
    for poor in np.flatnonzero(sizes < floor):
        while sizes[poor] < floor:
            negative, donor = heapq.heappop(donors)
            label = int(counts[:, donor].argmax())
            gift = min(floor - int(sizes[poor]), -negative - floor, int(counts[label, donor]))
            counts[label, donor] -= gift
            counts[label, poor] += gift
            sizes[poor] += gift
            if -negative - gift > floor:
                heapq.heappush(donors, (negative + gift, donor))


def whole(shares: Floats, sizes: Integers) -> Integers:
    """Round shares * sizes [n, k] to integers that keep each row's sum (largest remainders)."""
    exact = shares * sizes[:, None]
    floors = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(floors - exact, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(floors + (rank < (sizes - floors.sum(axis=1))[:, None]))


def substitute(wanted: Integers, missing: int, left: Integers) -> Integers:
    """Take `missing` samples out of `left` [classes], in place, first where some were wanted."""
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
