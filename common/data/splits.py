"""The train, test and calibration parts of each client's samples."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import Dataset
from common.data.partition import PartitionOptions, deal
from common.errors import DataError
from common.rng import stream

MIN_TEST = 4


@dataclass(frozen=True, eq=False)
class Split:
    """Sorted, disjoint sample indices of one client, int64 [n] each."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    calibration: NDArray[np.int64]


def split_client(
    indices: NDArray[np.int64],
    *,
    seed: int,
    client: int | str,
    test_fraction: float,
    calibration_fraction: float = 0.0,
    min_test: int = MIN_TEST,
) -> Split:
    """Split one client's samples at random, drawn from the address (seed, client).

    Args:
        indices: the client's samples, int64 [n], possibly none.
        seed: the run's seed.
        client: the client's id or number.
        test_fraction: share of n for the test part, in [0, 1). 0 means no test part.
        calibration_fraction: share of the rest for calibration, in [0, 1).
        min_test: smallest test part, but at most half of the samples. A single sample is used
            for training.

    Raises:
        DataError: a fraction is outside [0, 1) or min_test is negative.
    """
    for name, value in (("test", test_fraction), ("calibration", calibration_fraction)):
        if not 0 <= value < 1:
            raise DataError(f"{name}_fraction is {value}, expected 0 <= {name}_fraction < 1")
    if min_test < 0:
        raise DataError(f"min_test is {min_test}, expected at least 0")
    total = len(indices)
    floor = min(min_test, total // 2) if test_fraction else 0
    test = min(max(round(test_fraction * total), floor), max(total - 1, 0))
    rest = total - test
    calibration = min(round(calibration_fraction * rest), max(rest - 1, 0))
    shuffled = stream(seed, "split", client).permutation(indices).astype(np.int64, copy=False)
    parts = np.split(shuffled, [test, test + calibration])
    return Split(test=np.sort(parts[0]), calibration=np.sort(parts[1]), train=np.sort(parts[2]))


def split_own(
    dataset: Dataset,
    *,
    seed: int,
    client: str,
    test_fraction: float,
    calibration_fraction: float = 0.0,
    min_test: int = MIN_TEST,
) -> Split:
    """Split all samples of one client's own data. An existing test part stays the test part.

    The sizes of the parts do not depend on `client`. Arguments and errors: see `split_client`.
    """
    train, test = np.split(np.arange(len(dataset), dtype=np.int64), [dataset.train_size])
    split = split_client(
        train,
        seed=seed,
        client=client,
        test_fraction=0.0 if len(test) else test_fraction,
        calibration_fraction=calibration_fraction,
        min_test=min_test,
    )
    return replace(split, test=test) if len(test) else split


def federate(
    dataset: Dataset,
    *,
    partition: str,
    clients: int,
    seed: int,
    options: PartitionOptions | None = None,
    test_fraction: float,
    calibration_fraction: float = 0.0,
    min_test: int = MIN_TEST,
) -> list[Split]:
    """Partition all samples over the clients 0..N-1 and split each client's part.

    Arguments and errors: see `deal` and `split_client`.
    """
    dealt = deal(
        partition,
        dataset.labels,
        clients=clients,
        classes=len(dataset.classes),
        seed=seed,
        options=options,
    )
    return [
        split_client(
            indices,
            seed=seed,
            client=client,
            test_fraction=test_fraction,
            calibration_fraction=calibration_fraction,
            min_test=min_test,
        )
        for client, indices in enumerate(dealt)
    ]
