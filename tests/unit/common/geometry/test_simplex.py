"""The nearest point of the simplex meets the conditions that make it the nearest."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import AggregationError
from common.geometry import project_onto_simplex
from common.rng import stream
from common.types import Vector
from tests.each import for_each

FAMILY = for_each(
    ("n", "scale"), [(n, scale) for n in (1, 2, 7, 300) for scale in (1e-12, 0.1, 1.0, 1e3, 1e12)]
)


def draw(n: int, scale: float) -> Vector:
    return scale * stream(7, "simplex", n).normal(size=n)


@pytest.mark.parametrize(
    ("v", "p"),
    [
        ((1.3, 0.25), (1, 0)),  # published code that leaves out the j-th term gives (1.025, 0)
        ((0.9, 0.8, -0.5), (0.55, 0.45, 0)),
        ((0.2, 0.2, 0.2), (1 / 3, 1 / 3, 1 / 3)),
        ((5.0,), (1,)),
        ((-3.0, -3.0), (0.5, 0.5)),
        ((0.0, 1.0), (0, 1)),
        ((-1, 1), (0, 1)),
    ],
)
def test_cases_by_hand(v: tuple[float, ...], p: tuple[float, ...]) -> None:
    assert_allclose(project_onto_simplex(np.array(v)), p, rtol=0, atol=1e-12)


@FAMILY
def test_it_is_optimal(n: int, scale: float) -> None:
    """p = v + s where p > 0, v + s <= 0 elsewhere, for one s: the KKT conditions."""
    v = draw(n, scale)
    p = project_onto_simplex(v)
    rounding = 1e-15 * max(1.0, scale) * n
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1, abs=1e-13)
    lifts = (p - v)[p > 0]
    assert_allclose(lifts, lifts[0], rtol=0, atol=rounding)
    assert (v[p == 0] + lifts[0] <= rounding).all()


@FAMILY
def test_no_other_point_is_nearer(n: int, scale: float) -> None:
    v = draw(n, scale)
    p = project_onto_simplex(v)
    for q in stream(8, "others", n).dirichlet(np.ones(n), size=20):
        assert (v - p) @ (q - p) <= 1e-13 * max(1.0, scale) * n


@FAMILY
def test_a_point_of_the_simplex_stays(n: int, scale: float) -> None:
    once = project_onto_simplex(draw(n, scale))
    assert_allclose(project_onto_simplex(once), once, rtol=0, atol=1e-15)


@FAMILY
def test_the_order_does_not_matter(n: int, scale: float) -> None:
    v, order = draw(n, scale), stream(9, "order", n).permutation(n)
    assert_allclose(
        project_onto_simplex(v[order]), project_onto_simplex(v)[order], rtol=0, atol=1e-15
    )


@FAMILY
def test_moving_all_alike_moves_nothing(n: int, scale: float) -> None:
    v = draw(n, scale)
    moved = project_onto_simplex(v + 10 * scale)
    assert_allclose(moved, project_onto_simplex(v), rtol=0, atol=1e-14 * max(1.0, scale))


@pytest.mark.parametrize("n", [2000, 100_000])
def test_many_small_shares_still_add_up_to_one(n: int) -> None:
    shares = np.full(n, 1 / n)
    shares[0] += 0.7
    p = project_onto_simplex(shares)
    assert p.sum() == pytest.approx(1, abs=1e-15)
    assert (p[1:] == p[1]).all()


@pytest.mark.parametrize(
    ("v", "p"),
    [
        ((1e308, -1e308), (1, 0)),
        ((1.7e308, 1.7e308, 0), (0.5, 0.5, 0)),
        ((-1.7e308, -1.7e308), (0.5, 0.5)),
        ((1e300, 1.0), (1, 0)),
        ((5e-324, 0.0), (0.5, 0.5)),
    ],
)
def test_numbers_at_the_ends_of_the_range(v: tuple[float, ...], p: tuple[float, ...]) -> None:
    assert_array_equal(project_onto_simplex(np.array(v)), p)


def test_it_leaves_its_argument_alone_and_answers_in_float64() -> None:
    v = np.array([2.0, 0.5], np.float32)
    assert project_onto_simplex(v).dtype == np.float64
    assert_array_equal(v, [2.0, 0.5])


@pytest.mark.parametrize("v", [[], [[0.5, 0.5]], [0.5, np.nan], [np.inf]])
def test_what_has_no_projection_is_refused(v: Any) -> None:
    with pytest.raises(AggregationError, match="at least one finite number"):
        project_onto_simplex(np.array(v))
