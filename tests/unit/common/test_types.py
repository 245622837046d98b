"""A cohort is sorted by client, so arrival order cannot reach any sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from common.rng import stream
from common.types import ClientUpdate, Cohort, by_client
from tests.builders import cohort_of


@given(st.permutations(range(12)))
def test_updates_are_sorted_as_people_count(order: list[int]) -> None:
    cohort = cohort_of(np.zeros((12, 1)), names=[str(k) for k in order])
    assert [update.client for update in cohort.updates] == [str(k) for k in range(12)]


def test_names_follow_the_alphabet_and_their_length() -> None:
    assert sorted(["b", "10", "2", "a", "site-1"], key=by_client) == ["2", "a", "b", "10", "site-1"]


def test_shares_are_of_the_cohorts_examples() -> None:
    cohort = cohort_of(np.zeros((3, 1)), (50, 30, 20))
    assert_array_equal(cohort.shares, [0.5, 0.3, 0.2])
    assert_array_equal(cohort.equal_shares, np.full(3, 1 / 3))
    assert cohort.shares.dtype == np.float64


@pytest.mark.parametrize("m", [1, 2, 7, 100])
def test_with_equal_sizes_both_kinds_of_shares_are_the_same_bits(m: int) -> None:
    for size in (1, 3, 600, 12_345):
        cohort = cohort_of(np.zeros((m, 1)), [size] * m)
        assert_array_equal(cohort.shares, cohort.equal_shares)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_is_the_weighted_sum_in_the_updates_dtype(dtype: type) -> None:
    rows = stream(0, "rows").normal(size=(6, 500)).astype(dtype)
    cohort = cohort_of(rows, range(1, 7))
    mean = cohort.mean(cohort.shares)
    assert mean.dtype == dtype
    exact = cohort.shares @ rows.astype(np.float64)
    assert_allclose(mean, exact, rtol=0, atol=10 * np.finfo(dtype).eps)


def test_the_mean_does_not_touch_the_updates() -> None:
    rows = np.ones((3, 4), np.float32)
    cohort_of(rows).mean(np.array([0.2, 0.3, 0.5]))
    assert_array_equal(rows, np.ones((3, 4)))


def test_a_share_for_each_client_or_none_at_all() -> None:
    with pytest.raises(ValueError, match="zip"):
        cohort_of(np.ones((3, 4))).mean(np.ones(2))


def test_large_counts_do_not_overflow() -> None:
    update = ClientUpdate("a", 2**62, 1, 0.1, np.ones(1))
    other = ClientUpdate("b", 2**62, 1, 0.1, np.ones(1))
    assert_array_equal(Cohort(1, 0.1, 2, (update, other)).shares, [0.5, 0.5])


def test_numbers_of_a_cohort_go_under_the_clients_names() -> None:
    updates = tuple(ClientUpdate(name, 1, 1, 0.1, np.ones(1)) for name in ("b", "a"))
    assert Cohort(1, 0.1, 2, updates).by_client(np.array([1.5, 2.5])) == {"a": 1.5, "b": 2.5}
