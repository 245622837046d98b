"""Displacements that are remembered: their products, in the precision that they need."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import DTypeLike

from common.geometry import gram, inner_products
from common.methods import FedPCD, history
from common.methods.history import CohortWithHistory, History
from common.types import ClientUpdate, Cohort, Matrix, Vector
from tests.builders import layout_of_size

D = 2_000


@pytest.fixture(autouse=True)
def _even_short_rows_count_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LONG", D)
    monkeypatch.setattr(history, "PIECE", 64)
    monkeypatch.setattr(gram, "MIN_COLUMNS", 16)
    monkeypatch.setattr(gram, "MAX_COLUMNS", 16)


def cohort(number: int, rows: Sequence[Vector], first: int = 0) -> Cohort:
    """A round whose clients are `first`, first + 1, ... and have these displacements."""
    updates = (ClientUpdate(str(first + k), 10 + k, 5, 0.5, row) for k, row in enumerate(rows))
    return Cohort(number, 0.1, 50, tuple(updates))


def drawn(count: int, seed: int, dtype: DTypeLike = np.float32) -> list[Vector]:
    """Displacements that share a little."""
    rng = np.random.default_rng(seed)
    return [row.astype(dtype) for row in rng.normal(size=(count, D)) + 0.1]


def joined(state: History, group: Cohort) -> CohortWithHistory:
    """Join a cohort to everything that is remembered."""
    return state.join(group, group.shares, before=0)


def after(*groups: Cohort) -> History:
    """What is remembered after these rounds."""
    state = History()
    for group in groups:
        state = joined(state, group).history
    return state


def noise(count: int, seed: int, size: int) -> list[Vector]:
    """Displacements like those of training."""
    rng = np.random.default_rng(seed)
    return list(rng.normal(size=(count, size)).astype(np.float32))


def signs(count: int, seed: int, size: int) -> list[Vector]:
    """Displacements of which every number is 1.1 or -1.1: rounding errors that do not even out."""
    rng = np.random.default_rng(seed)
    return [np.where(rng.random(size) < 0.7, 1.1, -1.1).astype(np.float32) for _ in range(count)]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str]]:
    """Of all products that are made: how many rows, with how many, in which dtype."""
    calls: list[tuple[int, int, str]] = []

    def counting(
        new: Sequence[Vector], all_: Sequence[Vector], *, compute_dtype: DTypeLike = np.float64
    ) -> Matrix:
        if len(all_) > 1:  # else it is a sample of a row
            calls.append((len(new), len(all_), np.dtype(compute_dtype).name))
        return inner_products(new, all_, compute_dtype=compute_dtype)

    monkeypatch.setattr(history, "inner_products", counting)
    return calls


def test_products_of_what_is_remembered_are_never_made_again(
    made: list[tuple[int, int, str]],
) -> None:
    after(*(cohort(r, drawn(4, r), first=4 * r) for r in (1, 2, 3, 4)))
    assert made == [(5, 5, "float64"), *((4, 4 * r, "float32") for r in (2, 3, 4))]


def test_a_round_makes_one_matrix_of_all_products_and_leaves_the_old_one_alone() -> None:
    """A state is good until the next one is kept: a void round goes on from it."""
    m, rounds = 100, 6
    *before, group = [cohort(r, noise(m, r, 64), first=m * r) for r in range(rounds)]
    state = after(*before)
    state.products.setflags(write=False)
    tracemalloc.start()
    try:
        found = joined(state, group)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.shares_memory(found.products, found.history.products)
    assert peak < 1.6 * 8 * (rounds * m) ** 2  # the products of the new rows are a sixth
    assert_array_equal(joined(state, group).products, found.products)


def test_products_are_those_of_float64_up_to_a_few_parts_in_a_hundred_million() -> None:
    state = after(*(cohort(r, drawn(4, r), first=4 * r) for r in (1, 2)))
    found = joined(state, cohort(3, drawn(4, 3), first=12))
    exact = inner_products(found.rows, found.rows)
    lengths = np.sqrt(np.diag(exact))
    assert found.compute_dtype == np.float32
    assert np.abs(found.products - exact).max() > 0
    assert_allclose(found.products, exact, rtol=0, atol=5e-8 * lengths.max() ** 2)


def test_rows_that_nearly_depend_on_each_other_are_all_multiplied_in_float64(
    made: list[tuple[int, int, str]],
) -> None:
    state = after(*(cohort(r, drawn(4, r), first=4 * r) for r in (1, 2)))
    rows = drawn(4, 3)
    rows[3] = rows[0] + np.float32(0.01) * rows[3]
    made.clear()
    found = joined(state, cohort(3, rows, first=12))
    assert made == [(4, 12, "float32"), (13, 13, "float64")]
    assert found.compute_dtype == np.float64
    assert found.history.exact
    assert_allclose(found.products, inner_products(found.rows, found.rows), rtol=1e-12)
    made.clear()
    again = joined(found.history, cohort(4, drawn(4, 4), first=20))
    assert made == [(5, 17, "float64")]  # what was made in float64 is not made again
    assert again.history.exact


def test_float32_is_good_enough_again_once_such_rows_are_gone() -> None:
    twins = drawn(2, 1)
    twins[1] = twins[0] * np.float32(1.001)
    state = after(cohort(1, twins))
    assert state.exact
    group = cohort(5, drawn(4, 2), first=10)
    later = state.join(group, group.shares, before=2)  # the twins are too old
    assert not later.history.exact


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_numbers_whose_squares_leave_float32_are_multiplied_in_float64(scale: float) -> None:
    def scaled(seed: int) -> list[Vector]:
        return [row * np.float32(scale) for row in drawn(4, seed)]

    found = joined(after(cohort(1, scaled(1), first=4)), cohort(2, scaled(2), first=8))
    assert found.history.exact
    assert_allclose(found.products, inner_products(found.rows, found.rows), rtol=1e-12)


def test_rows_whose_rounding_errors_do_not_even_out_are_multiplied_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 2**18
    monkeypatch.undo()  # as in a real run
    state = after(cohort(1, noise(3, 1, size)))
    assert not state.exact
    found = joined(state, cohort(2, signs(3, 2, size), first=10))
    assert found.history.exact
    assert_allclose(found.products, inner_products(found.rows, found.rows), rtol=1e-12)
    noisy = joined(state, cohort(2, noise(3, 3, size), first=10))
    assert not noisy.history.exact


def test_products_in_float32_do_not_count_as_exact_beside_float64_rows() -> None:
    state = after(cohort(1, drawn(4, 1)))
    assert not state.exact
    found = joined(state, cohort(2, drawn(4, 2, np.float64), first=8))
    assert found.history.exact
    assert_allclose(found.products, inner_products(found.rows, found.rows), rtol=1e-12)


def test_short_rows_are_multiplied_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LONG", D + 1)
    assert after(cohort(1, drawn(4, 1))).exact


def test_float64_rows_stay_in_float64() -> None:
    rounds = [cohort(r, drawn(4, r, np.float64), first=4 * r) for r in (1, 2, 3)]
    assert after(*rounds).exact


def test_fedpcd_in_float32_is_fedpcd_in_float64_to_a_millionth() -> None:
    method, layout = FedPCD(tau=0.5), layout_of_size(D)
    fast, exact = History(), History()
    for number in range(1, 6):
        group = cohort(number, drawn(5, number), first=5 * number)
        double = replace(
            group,
            updates=tuple(replace(u, delta=u.delta.astype(np.float64)) for u in group.updates),
        )
        here, there = (method.aggregate(g, s, layout) for g, s in ((group, fast), (double, exact)))
        fast, exact = here.state, there.state
        size = np.linalg.norm(there.direction)
        assert np.linalg.norm(here.direction - there.direction) <= 1e-6 * size
        assert here.report["active"] == there.report["active"]
    assert here.report["active"] > 3
    assert not fast.exact
