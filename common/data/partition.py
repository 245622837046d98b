"""How the pool's samples are dealt to clients: every sample to exactly one client.

Each partition is drawn at the address (seed, "partition", ...) and returns one owner per sample,
so that no sample can be lost or doubled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

import numpy as np

from common.data.allocation import (
    Floats,
    Integers,
    by_owner,
    deal_classes,
    dirichlet_shares,
    equal_runs,
    repair,
    substitute,
    whole,
)
from common.errors import DataError, did_you_mean
from common.rng import stream

MAX_TRIES = 200
MAX_DRAWS = 10_000_000  # bounds the tries when clients x classes is large
DEFAULT_FLOOR = 20


@dataclass(frozen=True)
class PartitionOptions:
    """What the partitions can be told; each reads what concerns it.

    Attributes:
        alpha: concentration of the Dirichlet draws, > 0; small is heterogeneous.
        shards_per_client: single-label pieces that a client gets from `shards`.
        min_size: samples that every client gets at least; None is 20 or, when there are too few
            samples for that, an equal share (with `equal_slices`: half an equal share).
        equal_slices: after the `dirichlet` draw, lay the clients' lists end to end and cut N equal
            slices, as FedPVR's code does; milder than the draw.
    """

    alpha: float = 0.1
    shards_per_client: int = 2
    min_size: int | None = None
    equal_slices: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.alpha) and self.alpha > 0):
            raise DataError(f"alpha is {self.alpha}, expected a finite number above 0")
        if self.shards_per_client < 1:
            raise DataError(f"shards_per_client is {self.shards_per_client}, expected at least 1")
        if self.min_size is not None and self.min_size < 0:
            raise DataError(f"min_size is {self.min_size}, expected at least 0")


Partition: TypeAlias = Callable[[Integers, int, int, int, PartitionOptions], list[Integers]]


def iid(
    labels: Integers, clients: int, classes: int, seed: int, options: PartitionOptions
) -> list[Integers]:
    """Deal the shuffled pool in equal parts (+- 1)."""
    _check(labels, clients, classes, options)
    owner = np.empty(len(labels), dtype=np.int64)
    owner[stream(seed, "partition", "iid").permutation(len(labels))] = equal_runs(
        len(labels), clients
    )
    return by_owner(owner, clients)


def dirichlet(
    labels: Integers, clients: int, classes: int, seed: int, options: PartitionOptions
) -> list[Integers]:
    """Cut each class over the clients by Dir(alpha), as FedLF's and FedDF's code does.

    A client that already holds an equal share takes nothing of later classes. At most 200 draws
    are made until everybody has the floor, which at alpha 0.01 never happens; then the draw with
    the largest minimum is repaired: the largest clients give of their largest class. Cuts are
    rounded to the nearest sample, where the originals round down: at small alpha the running sum
    ends at 1 - 1e-16, and rounding that down would deal stray samples.
    """
    floor = _check(labels, clients, classes, options)
    supplies = np.bincount(labels, minlength=classes)
    rng = stream(seed, "partition", "dirichlet")
    tries = max(1, min(MAX_TRIES, MAX_DRAWS // (clients * classes)))
    best = _draw(rng, supplies, clients, options.alpha)
    for _ in range(tries - 1):
        if best.sum(axis=0).min() >= floor:
            break
        drawn = _draw(rng, supplies, clients, options.alpha)
        best = max(best, drawn, key=lambda counts: int(counts.sum(axis=0).min()))
    repair(best, floor)
    owner = deal_classes(labels, best, rng)
    if options.equal_slices:
        laid_out = np.lexsort((rng.permutation(len(labels)), labels, owner))
        owner[laid_out] = equal_runs(len(labels), clients)
    return by_owner(owner, clients)


def dirichlet_client(
    labels: Integers, clients: int, classes: int, seed: int, options: PartitionOptions
) -> list[Integers]:
    """Give equal-sized clients (+- 1) a class mix of their own, drawn from Dir(alpha).

    Each client asks for its mix. A class that is asked for too often serves the clients in random
    order, another order for each class, until it is used up. What a client could not get comes
    from the other classes that it asked for, in their proportion, and then from the fullest class
    left, so that it stays at few classes. As many samples as possible follow the drawn mixes.
    """
    _check(labels, clients, classes, options)
    left = np.bincount(labels, minlength=classes)
    sizes = np.bincount(equal_runs(len(labels), clients), minlength=clients)
    wanted = whole(client_mixes(clients, classes, seed, options.alpha), sizes)
    rng = stream(seed, "partition", "dirichlet-client")
    counts = np.zeros_like(wanted)
    for label in range(classes):
        order = rng.permutation(clients)
        asked = wanted[order, label]
        counts[order, label] = np.clip(left[label] - (asked.cumsum() - asked), 0, asked)
    left -= counts.sum(axis=0)
    for client in rng.permutation(clients):
        missing = int(sizes[client] - counts[client].sum())
        if missing:
            counts[client] += substitute(wanted[client], missing, left)
    return by_owner(deal_classes(labels, counts.T, rng), clients)


def client_mixes(clients: int, classes: int, seed: int, alpha: float) -> Floats:
    """Return the class mix [clients, classes] that `dirichlet_client` draws for each client."""
    rng = stream(seed, "partition", "dirichlet-client", "mixes")
    return dirichlet_shares(rng, alpha, (clients, classes))


def shards(
    labels: Integers, clients: int, classes: int, seed: int, options: PartitionOptions
) -> list[Integers]:
    """Sort by label, cut clients * shards_per_client pieces, deal them at random.

    McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized Data. 2017.
    """
    floor, each, total = (
        _check(labels, clients, classes, options),
        options.shards_per_client,
        len(labels),
    )
    if clients * each > total or each * (total // (clients * each)) < floor:
        raise DataError(
            f"{total} samples cannot be cut into {clients} x {each} shards with {floor} samples "
            "per client: lower shards_per_client, min_size or the number of clients"
        )
    rng = stream(seed, "partition", "shards")
    shuffled = rng.permutation(total)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner_of_shard = rng.permutation(np.repeat(np.arange(clients), each))
    owner = np.empty(total, dtype=np.int64)
    owner[by_label] = owner_of_shard[equal_runs(total, clients * each)]
    return by_owner(owner, clients)


PARTITIONS: Mapping[str, Partition] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet-client": dirichlet_client,
    "shards": shards,
}


def deal(
    name: str,
    labels: Integers,
    *,
    clients: int,
    classes: int,
    seed: int,
    options: PartitionOptions | None = None,
) -> list[Integers]:
    """Deal samples to clients by the partition of that name.

    Args:
        name: a key of PARTITIONS.
        labels: int64 [n], each in 0..classes-1.
        clients: how many index arrays to return.
        classes: number of classes of the federation, present or not.
        seed: same seed, same split, on every machine.
        options: see PartitionOptions.

    Returns:
        One sorted int64 array of sample indices per client.

    Raises:
        DataError: unknown name, or a request that cannot be met.
    """
    if name not in PARTITIONS:
        known = ", ".join(PARTITIONS)
        raise DataError(
            f'no partition is named "{name}"{did_you_mean(name, PARTITIONS)}; known: {known}'
        )
    return PARTITIONS[name](labels, clients, classes, seed, options or PartitionOptions())


def _check(labels: Integers, clients: int, classes: int, options: PartitionOptions) -> int:
    """Return the least number of samples per client, or say why that cannot be."""
    total = len(labels)
    if not 1 <= clients <= total:
        raise DataError(
            f"{total} samples cannot be dealt to {clients} clients: ask for 1 to {total} clients"
        )
    if not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(
            f"labels are {labels.min()}..{labels.max()}, expected 0..{classes - 1} for "
            f"{classes} classes"
        )
    share = total // clients
    if options.min_size is None:
        return share // 2 if options.equal_slices else min(DEFAULT_FLOOR, share)
    if options.min_size > share:
        raise DataError(
            f"{clients} clients with at least {options.min_size} samples each need "
            f"{clients * options.min_size} samples, there are {total}: lower min_size to "
            f"{share} or ask for at most {total // options.min_size} clients"
        )
    return options.min_size


def _draw(rng: np.random.Generator, supplies: Integers, clients: int, alpha: float) -> Integers:
    """Draw counts [classes, clients] whose rows sum to `supplies`."""
    counts = np.zeros((len(supplies), clients), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    for row, supply in zip(counts, supplies, strict=True):
        shares = dirichlet_shares(rng, alpha, (clients,))
        open_shares = np.where(held < supplies.sum() / clients, shares, 0.0)
        if not open_shares.sum() > 0:  # all the mass is on full clients
            open_shares = np.where(held == held.min(), 1.0, 0.0)
        running = open_shares.cumsum()
        cuts = np.rint(running / running[-1] * supply)  # the last one is `supply` exactly
        row[:] = np.diff(cuts, prepend=0)
        held += row
    return counts
