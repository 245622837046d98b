"""Partitions of a data set over clients. Every sample belongs to exactly one client.

Each partition is drawn from the address (seed, "partition", ...).
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
MAX_DRAWS = 10_000_000  # limits the tries when clients x classes is large
DEFAULT_FLOOR = 20
NEAR_IID = 10.0  # above this alpha the mixes of dirichlet-client follow the sizes of the classes


@dataclass(frozen=True)
class PartitionOptions:
    """Options of the partitions. Each partition reads the options that it needs.

    Attributes:
        alpha: concentration of the Dirichlet draws, > 0. A small alpha is heterogeneous.
        shards_per_client: number of single-label pieces per client in `shards`.
        min_size: smallest number of samples per client. None is 20, or an equal share if there
            are too few samples for that (with `equal_slices`: half an equal share).
        equal_slices: after the `dirichlet` draw, concatenate the clients' samples and cut N equal
            slices, as FedPVR's code does. This is less heterogeneous than the draw.
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
    """Split the shuffled samples into equal parts (+- 1)."""
    _check(labels, clients, classes, options)
    owner = np.empty(len(labels), dtype=np.int64)
    owner[stream(seed, "partition", "iid").permutation(len(labels))] = equal_runs(
        len(labels), clients
    )
    return by_owner(owner, clients)


def dirichlet(
    labels: Integers, clients: int, classes: int, seed: int, options: PartitionOptions
) -> list[Integers]:
    """Split each class over the clients by Dir(alpha), as the code of FedLF and FedDF does.

    A client that already has an equal share gets no samples of later classes. The draw is repeated
    up to 200 times until every client has the smallest number of samples. At alpha 0.01 this never
    succeeds. Then the draw with the largest minimum is repaired: the largest clients give samples
    of their largest class.

    Cuts are rounded to the nearest sample. The original codes round down, but at small alpha the
    cumulated share ends at 1 - 1e-16, and rounding down would misplace single samples.
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
    """Give each of the equal-sized clients (+- 1) its own class mix, drawn from Dir(alpha).

    A class with too few samples serves the clients in random order until it is used up. The order
    differs between classes. A client gets its missing samples from the other classes in its mix,
    in their proportion, and then from the class with the most samples left. So it keeps few
    classes, and as many samples as possible follow the drawn mixes.

    The draw prefers no class, so equal mixes ask for more of a rare class than there is. Above
    alpha = 10, where clients should be alike, a mix is weighted by the sizes of the classes.
    Smaller values keep the unweighted draw, which earlier results used.
    """
    _check(labels, clients, classes, options)
    left = np.bincount(labels, minlength=classes)
    sizes = np.bincount(equal_runs(len(labels), clients), minlength=clients)
    mixes = client_mixes(clients, classes, seed, options.alpha)
    if options.alpha > NEAR_IID:
        mixes = mixes * left
        mixes /= mixes.sum(axis=1, keepdims=True)
    wanted = whole(mixes, sizes)
    rng = stream(seed, "partition", "dirichlet-client")
    counts = np.zeros_like(wanted)
    for label in range(classes):
        order = rng.permutation(clients)
        demand = wanted[order, label]
        counts[order, label] = np.clip(left[label] - (demand.cumsum() - demand), 0, demand)
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
    """Sort by label, cut into clients * shards_per_client pieces, assign these at random.

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
    """Return each client's samples, by the partition of that name.

    Args:
        name: a key of PARTITIONS.
        labels: int64 [n], each in 0..classes-1.
        clients: number of clients.
        classes: number of classes of the federation, including classes without samples.
        seed: the run's seed. The same seed gives the same partition on every machine.
        options: options of the partition, None for the defaults.

    Returns:
        Sorted sample indices of each client, int64 [n].

    Raises:
        DataError: the name is unknown, or the data set cannot be partitioned like this.
    """
    if name not in PARTITIONS:
        known = ", ".join(PARTITIONS)
        raise DataError(
            f'no partition is named "{name}"{did_you_mean(name, PARTITIONS)}; known: {known}'
        )
    return PARTITIONS[name](labels, clients, classes, seed, options or PartitionOptions())


def _check(labels: Integers, clients: int, classes: int, options: PartitionOptions) -> int:
    """Return the smallest number of samples per client.

    Raises:
        DataError: the data set cannot be partitioned like this.
    """
    total = len(labels)
    if not 1 <= clients <= total:
        raise DataError(
            f"{total} samples cannot be split over {clients} clients: set clients to 1 to {total}"
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
        if not open_shares.sum() > 0:  # the draw gives everything to full clients
            open_shares = np.where(held == held.min(), 1.0, 0.0)
        running = open_shares.cumsum()
        cuts = np.rint(running / running[-1] * supply)  # the last cut is exactly `supply`
        row[:] = np.diff(cuts, prepend=0)
        held += row
    return counts
