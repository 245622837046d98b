"""Inner products and sums of long vectors are those of float64, block by block."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common import parallel
from common.errors import AggregationError
from common.geometry import (
    all_finite,
    combine,
    combined_length,
    differences,
    gram,
    inner_products,
    length,
    lengths_and_scales,
)
from common.types import Vector
from tests.each import for_each


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "MAX_COLUMNS", 64)


def rows(count: int, d: int, dtype: str = "mixed", scale: float = 1.0) -> list[Vector]:
    """Separate arrays, every other one float32 if mixed."""
    kinds = {"mixed": ("float32", "float64"), "float32": ("float32",) * 2}[dtype]
    draws = scale * np.random.default_rng(d).normal(size=(count, d))
    return [draw.astype(kinds[k % 2]) for k, draw in enumerate(draws)]


@for_each("d", [0, 1, 63, 64, 65, 128, 1000])
@for_each("dtype", ["mixed", "float32"])
@for_each("scale", [1e-12, 1.0, 1e12])
def test_products_are_those_of_float64(d: int, dtype: str, scale: float) -> None:
    all_ = rows(7, d, dtype, scale)
    new = [*all_[2:4], *rows(1, d, dtype, scale)]
    expected = np.array(new, dtype=np.float64) @ np.array(all_, dtype=np.float64).T
    products = inner_products(new, all_)
    assert products.dtype == np.float64
    assert_allclose(products, expected, rtol=1e-12, atol=1e-13 * scale**2 * (d + 1))


def test_products_of_float32_rows_do_not_lose_what_float32_would() -> None:
    row = np.array([1.0, 1e-6] * 100, dtype=np.float32)
    other = np.array([1.0, -1.0] * 100, dtype=np.float32)
    assert inner_products([row], [other])[0, 0] == pytest.approx(
        100 * (1 - float(row[1])), rel=1e-13
    )


def test_each_row_is_read_once() -> None:
    """A row that is both new and among all costs one pass over memory."""

    class Counting(np.ndarray):
        reads = 0

        def __getitem__(self, key: slice) -> Vector:
            Counting.reads += 1
            return super().__getitem__(key)

    shared = np.ones(130).view(Counting)
    assert_array_equal(inner_products([shared], [shared, np.ones(130)]), [[130.0, 130.0]])
    assert Counting.reads == 3  # the blocks of 130 columns


def test_products_need_no_rows() -> None:
    assert inner_products([], rows(2, 5)).shape == (0, 2)
    assert inner_products([], []).shape == (0, 0)


@for_each("d", [0, 1, 63, 64, 65, 1000])
@for_each("scale", [1e-12, 1.0, 1e12])
def test_combination_is_that_of_float64(d: int, scale: float) -> None:
    vectors, weights = rows(5, d, scale=scale), np.array([0.5, -2.0, 0.0, 1e-3, 3.0])
    expected = weights @ np.array(vectors, dtype=np.float64)
    total = combine(weights, vectors)
    assert total.dtype == np.float64
    assert_allclose(total, expected, rtol=1e-12, atol=1e-14 * scale)
    assert combine(weights, vectors, dtype=np.float32).dtype == np.float32
    assert combine(weights[::2], vectors[::2]).dtype == np.float32


def test_combination_adds_up_in_float64() -> None:
    """In float32 the small one would vanish between two large ones that cancel."""
    vectors = [np.array([value], dtype=np.float32) for value in (1e8, 1.0, -1e8)]
    assert combine([1.0, 1.0, 1.0], vectors)[0] == 1.0


def test_a_row_of_weight_zero_is_not_read() -> None:
    assert_array_equal(combine([0.0, 2.0], [np.full(3, np.nan), np.ones(3)]), [2.0, 2.0, 2.0])


def test_combination_with_one_weight_of_one_is_the_row_itself() -> None:
    vector = rows(1, 1000, "float32")[0]
    assert_array_equal(combine([1.0, 0.0], [vector, vector]), vector)


def test_both_are_the_same_bits_every_time() -> None:
    vectors = rows(9, 1000)
    assert_array_equal(inner_products(vectors, vectors), inner_products(vectors, vectors))
    assert_array_equal(combine(np.arange(9), vectors), combine(np.arange(9), vectors))


def test_rows_are_left_alone() -> None:
    vectors, before = rows(3, 100), rows(3, 100)
    inner_products(vectors[:1], vectors)
    combine([1.0, 2.0, 3.0], vectors)
    for vector, old in zip(vectors, before, strict=True):
        assert_array_equal(vector, old)


def test_rows_must_be_flat_and_equally_long() -> None:
    with pytest.raises(AggregationError, match=r"3 numbers like the first.*at place 1"):
        inner_products([np.ones(4)], [np.ones(3)])
    with pytest.raises(AggregationError, match=r"shape \(1, 3\) at place 1"):
        combine([1.0, 1.0], [np.ones(3), np.ones((1, 3))])


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, np.nan], [[1.0, 1.0]]])
def test_each_row_needs_a_finite_weight(weights: list[float]) -> None:
    with pytest.raises(AggregationError, match="finite weight for each"):
        combine(weights, [np.ones(3), np.ones(3)])
    with pytest.raises(AggregationError, match="at least one row"):
        combine([], [])


def test_lengths_are_those_of_the_vectors_and_of_their_combinations() -> None:
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [1.0, -2.0, 2.0]])
    products = inner_products(list(rows), list(rows))
    lengths, scale = lengths_and_scales(products)
    assert_allclose(lengths, [5, 0, 3])
    assert_allclose(scale, [1 / 5, 0, 1 / 3])
    weights = np.array([0.5, 7.0, -2.0])
    assert combined_length(weights, products) == pytest.approx(np.linalg.norm(weights @ rows))
    assert combined_length(np.zeros(3), products) == 0.0
    assert length(np.full(100_000, 1e30, np.float32)) == pytest.approx(1e30 * 100_000**0.5)


# ---------------------------------------------------------------- float32, and many cores


def test_working_in_float32_is_good_to_a_few_parts_in_a_hundred_million() -> None:
    all_ = rows(6, 50_000, "float32")
    exact = inner_products(all_[:3], all_)
    fast = inner_products(all_[:3], all_, compute_dtype=np.float32)
    lengths = np.array([length(row) for row in all_])
    error = np.abs(fast - exact) / np.outer(lengths[:3], lengths)
    assert 0 < error.max() < 5e-8  # of 0 it would not have worked in float32


def test_a_combination_in_float32_is_that_of_float64_up_to_float32() -> None:
    parts, weights = rows(8, 3_000, "float32"), np.linspace(-1, 2, 8)
    exact, fast = combine(weights, parts), combine(weights, parts, compute_dtype=np.float32)
    assert fast.dtype == exact.dtype == np.float32
    assert 0 < np.abs(fast - exact).max() < 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("cores", [1, 2, 7])
def test_the_bits_do_not_depend_on_the_number_of_cores(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "SPAN", 100)
    monkeypatch.setattr(parallel, "FEW", 1_000)
    parts, weights = rows(5, 1_050, "float32"), np.linspace(-1, 1, 5)

    def results() -> list[Vector]:
        deltas, _ = differences(parts[0], parts[1:])
        products = inner_products(parts[:2], parts, compute_dtype=np.float32)
        return [products, combine(weights, parts), *deltas]

    monkeypatch.setattr(parallel, "usable_cores", lambda: 1)
    one = results()
    monkeypatch.setattr(parallel, "usable_cores", lambda: cores)
    for here, there in zip(results(), one, strict=True):
        assert_array_equal(here, there)


# ---------------------------------------------------------------- differences


def test_differences_and_lengths_are_those_of_numpy_and_nan_unless_all_is_finite() -> None:
    start, *ends = rows(5, 300, "float32")
    ends[1][7] = np.nan
    ends[2][299] = -np.inf
    ends[3][:] = 3e38  # a difference of two such numbers is none
    start[5] = -3e38
    results, lengths = differences(start, ends)
    with np.errstate(over="ignore"):
        expected = [start - end for end in ends]
    assert np.isnan(lengths).tolist() == [False, True, True, True]
    assert lengths[0] == pytest.approx(np.linalg.norm(expected[0].astype(float)), rel=1e-6)
    for result, wanted in zip(results, expected, strict=True):
        assert_array_equal(result, wanted)


def test_large_numbers_whose_squares_overflow_are_finite() -> None:
    _, lengths = differences(np.full(300, 1e30, np.float32), [np.zeros(300, np.float32)])
    assert lengths == [pytest.approx(1e30 * 300**0.5)]
    assert all_finite(np.full((3, 4), 1e30, np.float32))
    assert all_finite(np.array(7))
    assert not all_finite(np.array([1e30, np.nan], np.float32))


def test_differences_with_nobody_are_none() -> None:
    assert differences(np.zeros(3), []) == ([], [])
