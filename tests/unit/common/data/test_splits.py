"""A client's three parts are disjoint and complete, however few samples it has."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from common.data.sources import load
from common.data.splits import federate, split_client
from common.errors import DataError
from tests.each import for_each

OFFSET = np.arange(1000, 1600)


@for_each("total", [0, 1, 2, 3, 5, 7, 8, 20, 599, 600])
@for_each("test", [0.0, 1 / 6, 0.5, 0.99])
@for_each("calibration", [0.0, 0.2, 0.99])
def test_parts_are_disjoint_and_complete(total: int, test: float, calibration: float) -> None:
    split = split_client(
        OFFSET[:total], seed=0, client=3, test_fraction=test, calibration_fraction=calibration
    )
    parts = (split.train, split.test, split.calibration)
    assert_array_equal(np.sort(np.concatenate(parts)), OFFSET[:total])
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    assert len(split.train) >= min(total, 1)


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/246
@pytest.mark.parametrize(
    ("total", "train", "test"),
    [(0, 0, 0), (1, 1, 0), (2, 1, 1), (5, 3, 2), (8, 4, 4), (20, 16, 4), (600, 500, 100)],
)
def test_small_clients_keep_half_and_a_floor_for_the_test(
    total: int, train: int, test: int
) -> None:
    split = split_client(OFFSET[:total], seed=0, client="a", test_fraction=1 / 6, min_test=4)
    assert (len(split.train), len(split.test), len(split.calibration)) == (train, test, 0)


def test_calibration_is_cut_from_the_train_part() -> None:
    bare, cut = (
        split_client(
            OFFSET, seed=1, client=0, test_fraction=1 / 6, calibration_fraction=calibration
        )
        for calibration in (0.0, 0.1)
    )
    assert_array_equal(bare.test, cut.test)
    assert (len(cut.train), len(cut.calibration)) == (450, 50)


def test_no_test_part_means_none() -> None:
    assert len(split_client(OFFSET, seed=0, client=0, test_fraction=0.0).test) == 0


def test_seed_and_client_decide() -> None:
    def test_part(seed: int, client: int | str) -> list[int]:
        return split_client(OFFSET, seed=seed, client=client, test_fraction=0.2).test.tolist()

    assert test_part(1, 2) == test_part(1, 2) == test_part(1, "2")
    assert test_part(1, 2) != test_part(1, 3)
    assert test_part(1, 2) != test_part(2, 2)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_fractions_outside_their_range_are_refused(fraction: float) -> None:
    with pytest.raises(DataError, match="test_fraction"):
        split_client(OFFSET, seed=0, client=0, test_fraction=fraction)
    with pytest.raises(DataError, match="calibration_fraction"):
        split_client(OFFSET, seed=0, client=0, test_fraction=0.1, calibration_fraction=fraction)


def test_a_federation_uses_the_whole_pool_once() -> None:
    digits = load("digits")
    splits = federate(
        digits, partition="dirichlet", clients=9, seed=4, test_fraction=0.2, min_test=4
    )
    used = [part for split in splits for part in (split.train, split.test, split.calibration)]
    assert len(splits) == 9
    assert_array_equal(np.sort(np.concatenate(used)), np.arange(len(digits)))
    assert min(len(split.test) for split in splits) >= 4
    again = federate(digits, partition="dirichlet", clients=9, seed=4, test_fraction=0.2)
    assert_array_equal(again[8].train, splits[8].train)
