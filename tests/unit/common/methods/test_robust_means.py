"""Median, trimmed mean and Krum: hand-checked numbers, and bounds that one hostile client meets."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.methods import Krum, Median, Method, TrimmedMean
from common.methods.krum import krum_scores
from common.methods.trimmed_mean import BLOCK_COLUMNS
from common.rng import stream
from common.types import Vector
from tests.builders import cohort_of, layout_of_size

ROBUST: list[Method[Any]] = [Median(), TrimmedMean(beta=0.2), Krum(hostile=0.2)]


def step_of(method: Method[Any], rows: Any, examples: Any = None) -> Vector:
    layout = layout_of_size(len(rows[0]))
    cohort = cohort_of(rows) if examples is None else cohort_of(rows, examples)
    return method.aggregate(cohort, method.init(layout), layout).direction


def test_median_is_the_middle_entry_or_the_mean_of_the_two_middle_ones() -> None:
    assert_array_equal(step_of(Median(), [[1.0, 9.0], [5.0, 2.0], [3.0, 4.0]]), [3.0, 4.0])
    assert_array_equal(step_of(Median(), [[1.0], [5.0], [3.0], [100.0]]), [4.0])


def test_trimmed_mean_leaves_out_the_share_at_either_end() -> None:
    rows = [[0.0], [1.0], [2.0], [6.0], [1000.0]]
    assert_allclose(step_of(TrimmedMean(beta=0.2), rows), [3.0])
    assert_allclose(step_of(TrimmedMean(beta=0.4), rows), [2.0])
    assert_allclose(step_of(TrimmedMean(beta=0.0), rows), [201.8])


def test_trimmed_mean_rounds_the_share_down_but_not_below_the_exact_product() -> None:
    """0.29 * 100 is 28.999... in floating point, and 29 entries are left out at either end."""
    rows = [[float(number)] for number in range(100)]
    step = TrimmedMean(beta=0.29).aggregate(cohort_of(rows), None, layout_of_size(1))
    assert step.report == {"left_out": 58.0}


def test_median_of_many_columns_and_blocks_is_numpys() -> None:
    rows = stream(3, "robust").normal(size=(7, 2 * BLOCK_COLUMNS + 5)).astype(np.float32)
    assert_array_equal(step_of(Median(), rows), np.median(rows, axis=0))


def test_krum_scores_are_sums_over_the_closest_others() -> None:
    """On a line at 0, 1, 3, 7, 100 with f = 1, a score has 5 - 1 - 2 = 2 neighbours."""
    rows = np.array([[0.0], [1.0], [3.0], [7.0], [100.0]])
    scores = krum_scores(rows @ rows.T, hostile=1)
    assert_allclose(scores, [1 + 9, 1 + 4, 4 + 9, 16 + 36, 93**2 + 97**2])
    assert_array_equal(step_of(Krum(hostile=0.2, keep=1), rows), [1.0])
    assert_allclose(step_of(Krum(hostile=0.2), rows), [(0 + 1 + 3 + 7) / 4])


def test_krum_reports_which_clients_it_used() -> None:
    rows = [[0.0], [1.0], [3.0], [7.0], [100.0]]
    report = Krum().aggregate(cohort_of(rows), None, layout_of_size(1)).report
    assert list(report["weights"].values()) == [0.25, 0.25, 0.25, 0.25, 0.0]


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("method", ROBUST, ids=lambda method: method.name)
def test_small_cohorts_have_a_step_within_their_range(method: Method[Any], count: int) -> None:
    rows = np.arange(count, dtype=np.float32)[:, None]
    (value,) = step_of(method, rows)
    assert 0 <= value <= count - 1


@pytest.mark.parametrize("hostile", [[1e20] * 4, [-1e20] * 4, [3e38] * 4, [0.0] * 4])
@pytest.mark.parametrize("method", ROBUST, ids=lambda method: method.name)
def test_one_hostile_client_of_ten_moves_no_coordinate_out_of_the_honest_range(
    method: Method[Any], hostile: list[float]
) -> None:
    honest = stream(5, "honest").normal(loc=1.0, size=(9, 4)).astype(np.float32)
    rows = np.vstack([honest, np.array([hostile], np.float32)])
    step = step_of(method, rows)
    assert np.isfinite(step).all()
    assert (step >= honest.min(axis=0)).all()
    assert (step <= honest.max(axis=0)).all()


@pytest.mark.parametrize("method", ROBUST, ids=lambda method: method.name)
def test_numbers_of_examples_have_no_influence(method: Method[Any]) -> None:
    rows = stream(6, "rows").normal(size=(5, 3)).astype(np.float32)
    claimed = (1, 2, 3, 4, 2**53)
    assert_array_equal(step_of(method, rows, claimed), step_of(method, rows))


@pytest.mark.parametrize("method", ROBUST, ids=lambda method: method.name)
def test_order_of_the_clients_has_no_influence_on_the_values(method: Method[Any]) -> None:
    rows = stream(7, "rows").normal(size=(6, 3)).astype(np.float32)
    assert_allclose(step_of(method, rows[::-1]), step_of(method, rows), rtol=1e-6)


def test_krum_with_no_hostile_client_and_all_kept_is_the_plain_mean() -> None:
    rows = stream(8, "rows").normal(size=(6, 3)).astype(np.float32)
    assert_allclose(step_of(Krum(hostile=0.0), rows), rows.mean(axis=0), rtol=1e-6)
    assert math.isclose(
        sum(Krum().aggregate(cohort_of(rows), None, layout_of_size(3)).report["weights"].values()),
        1,
    )
