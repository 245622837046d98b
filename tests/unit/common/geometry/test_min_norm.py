"""The shortest convex combination is the shortest, within its bounds, on ugly vectors too."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import qpsolvers
import quadprog
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import AggregationError
from common.geometry import ZERO_LENGTH, MinNormWeights, min_norm_weights
from common.rng import stream
from common.types import Matrix, Vector
from tests.each import for_each

Rng = np.random.Generator
Bounds = tuple[Vector, Vector]
FAMILIES: dict[str, Callable[[Rng, int], Matrix]] = {
    "independent": lambda rng, m: rng.normal(size=(m, m + 20)),
    "leaning": lambda rng, m: rng.normal(size=(m, 2 * m)) + rng.normal(size=2 * m),
    "crowd": lambda rng, m: rng.normal(size=(m, 3)),
    "crowd on one side": lambda rng, m: rng.normal(size=(m, 3)) + 2.0,
    "duplicates": lambda rng, m: rng.normal(size=(m, 20))[rng.integers(max(1, m // 3), size=m)],
    "one coordinate": lambda rng, m: rng.normal(size=(m, 1)),
    "nearly parallel": lambda rng, m: 1.0 + 1e-6 * rng.normal(size=(m, 20)),
    "opposed": lambda rng, m: (
        np.repeat(rng.normal(size=((m + 1) // 2, 30)), 2, axis=0)[:m]
        * np.where(np.arange(m) % 2, -1.0, 1.0)[:, None]
    ),
}
FAMILY = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(autouse=True)
def _nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> object:
    yield
    assert capfd.readouterr() == ("", "")


def cases(family: str, count: int = 20) -> list[tuple[Matrix, Bounds]]:
    """Unit rows, and bounds of some width around some shares."""
    made = []
    for k in range(count):
        rng = stream(5, "minnorm", family, k)
        m = int(rng.integers(1, 40))
        rows = FAMILIES[family](rng, m)
        rows /= np.linalg.norm(rows, axis=1)[:, None]
        shares, width = rng.dirichlet(np.full(m, 0.5)), rng.choice([0.0, 0.01, 0.1, 0.5, 1.0])
        made.append((rows, (np.maximum(shares - width, 0), np.minimum(shares + width, 1))))
    return made


def assert_optimal(rows: Matrix, answer: MinNormWeights, low: Vector, high: Vector) -> None:
    """No weight that can grow has a row with less along the combination than one that can shrink.

    Judged on the rows themselves, which are of length 1 at most.
    """
    weights = answer.weights
    assert (low <= weights).all()
    assert (weights <= high).all()
    assert abs(weights.sum() - 1) <= 1e-13
    combination = weights @ rows
    gains = rows @ combination
    least = np.min(gains, where=weights < high, initial=np.inf)
    most = np.max(gains, where=weights > low, initial=-np.inf)
    assert most - least <= (1e-9 if answer.length else ZERO_LENGTH)
    assert answer.residual <= (1e-9 if answer.length else ZERO_LENGTH)
    assert answer.length == pytest.approx(np.linalg.norm(combination), abs=ZERO_LENGTH)


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("rows", "weights", "length"),
    [
        ([[3.0, 4.0]], [1.0], 5.0),
        ([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5], math.sqrt(0.5)),
        ([[1.0, 0.0], [0.0, 2.0]], [0.8, 0.2], 2 / math.sqrt(5)),
        ([[1.0, 0.0], [3.0, 1.0]], [1.0, 0.0], 1.0),
        ([[1.0, 0.0], [-2.0, 0.0]], [2 / 3, 1 / 3], 0.0),
        ([[1.0, 1.0], [-1.0, 1.0], [0.0, 5.0]], [0.5, 0.5, 0.0], 1.0),
        ([[1.0, 0.0], [0.0, 0.0]], [0.0, 1.0], 0.0),
    ],
)
def test_by_hand(rows: list[list[float]], weights: list[float], length: float) -> None:
    vectors = np.array(rows)
    answer = min_norm_weights(vectors @ vectors.T)
    assert_allclose(answer.weights, weights, rtol=0, atol=1e-12)
    assert answer.length == pytest.approx(length, abs=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "weights"),
    [
        (None, [0.4, 1.0], [0.4, 0.6]),
        ([0.7, 0.0], None, [0.7, 0.3]),
        ([0.0, 0.0], [1.0, 1.0], [0.5, 0.5]),
        ([0.25, 0.75], [0.25, 0.75], [0.25, 0.75]),
        ([0.9, 0.1], [1.0, 0.1], [0.9, 0.1]),
    ],
)
def test_two_orthogonal_rows_within_bounds(
    low: list[float] | None, high: list[float] | None, weights: list[float]
) -> None:
    bounds = [None if bound is None else np.array(bound) for bound in (low, high)]
    assert_allclose(min_norm_weights(np.eye(2), *bounds).weights, weights, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- optimality


@FAMILY
def test_the_whole_simplex(family: str) -> None:
    for rows, _ in cases(family):
        answer = min_norm_weights(rows @ rows.T)
        assert_optimal(rows, answer, np.zeros(len(rows)), np.ones(len(rows)))


@FAMILY
def test_bounds(family: str) -> None:
    for rows, (low, high) in cases(family):
        answer = min_norm_weights(rows @ rows.T, low, high)
        assert_optimal(rows, answer, low, high)


@FAMILY
@for_each("scale", [1e-12, 1e-5, 1e12])
def test_the_unit_of_length_does_not_matter(family: str, scale: float) -> None:
    for rows, bounds in cases(family, 8):
        for limits in ((), bounds):
            one = min_norm_weights(rows @ rows.T, *limits)
            other = min_norm_weights((rows * scale) @ (rows * scale).T, *limits)
            assert_allclose(other.weights @ rows, one.weights @ rows, rtol=0, atol=ZERO_LENGTH)
            assert other.length == pytest.approx(one.length * scale, abs=ZERO_LENGTH * scale)
            assert other.residual <= ZERO_LENGTH


@FAMILY
def test_lengths_from_1e_minus_12_to_1e12_beside_each_other(family: str) -> None:
    for k, (rows, _) in enumerate(cases(family, 8)):
        lengths = 10.0 ** stream(6, "lengths", k).uniform(-12, 12, size=len(rows))
        rows = rows * lengths[:, None]
        answer = min_norm_weights(rows @ rows.T)
        assert answer.weights.min() >= 0
        assert abs(answer.weights.sum() - 1) <= 1e-14
        assert np.linalg.norm(answer.weights @ rows) <= lengths.min() * (1 + ZERO_LENGTH)


@FAMILY
def test_the_order_of_the_rows_does_not_matter(family: str) -> None:
    """The combination stays; its weights, too, where they are unique."""
    for k, (rows, bounds) in enumerate(cases(family, 8)):
        order = stream(8, "order", k).permutation(len(rows))
        for limits in ((), bounds):
            one = min_norm_weights(rows @ rows.T, *limits)
            moved = rows[order]
            other = min_norm_weights(moved @ moved.T, *(limit[order] for limit in limits))
            assert_allclose(other.weights @ moved, one.weights @ rows, rtol=0, atol=1e-7)
            if family in {"independent", "leaning"}:
                assert_allclose(other.weights, one.weights[order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["independent", "leaning"])
def test_quadprog_agrees(family: str) -> None:
    for rows, (low, high) in cases(family):
        m, gram = len(rows), rows @ rows.T
        sums, eye = np.ones((m, 1)), np.eye(m)
        for limits in ((), (low, high)):
            lower, upper = limits or (np.zeros(m), np.ones(m))
            sides, edges = np.hstack([sums, eye, -eye]), np.concatenate([[1.0], lower, -upper])
            expected = quadprog.solve_qp(gram, np.zeros(m), sides, edges, 1)[0]
            found = min_norm_weights(gram, *limits).weights
            assert_allclose(found, expected, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- solvers, and what is refused


# A public report of this bug: https://github.com/qpsolvers/qpsolvers/issues/197
@pytest.mark.parametrize("word", [None, math.nan, 0.0, -5.0, 1e300, "raises", "reversed"])
@FAMILY
def test_a_solver_that_lies_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, word: float | str | None, family: str
) -> None:
    made = cases(family, 4)
    expected = [min_norm_weights(rows @ rows.T, *bounds) for rows, bounds in made]

    def liar(problem: qpsolvers.Problem, *_: object, **__: object) -> SimpleNamespace:
        if word == "raises":
            raise RuntimeError("out of memory")
        if word == "reversed":
            return SimpleNamespace(x=problem.ub[::-1])
        return SimpleNamespace(x=None if word is None else np.full(len(problem.q), word))

    monkeypatch.setattr(qpsolvers, "solve_problem", liar)
    for (rows, bounds), right in zip(made, expected, strict=True):
        answer = min_norm_weights(rows @ rows.T, *bounds)
        assert_optimal(rows, answer, *bounds)
        assert_allclose(answer.weights @ rows, right.weights @ rows, rtol=0, atol=ZERO_LENGTH)


# A public report of this bug: https://github.com/osqp/osqp/issues/389
@pytest.mark.parametrize("m", [2, 10, 100])
def test_weights_are_weights_whatever_the_clients_send(m: int) -> None:
    """Identical gradients, and one that is a thousand times larger."""
    rows = np.full((m, 5), 0.3)
    shares = np.full(m, 1 / m)
    large = rows.copy()
    large[0] *= 1000
    for vectors in (rows, large):
        for limits in ((), (shares / 2, np.minimum(2 * shares, 1))):
            weights = min_norm_weights(vectors @ vectors.T, *limits).weights
            assert weights.min() >= 0
            assert abs(weights.sum() - 1) <= 1e-13
            shortest, plain = (np.linalg.norm(w @ vectors) for w in (weights, shares))
            assert shortest <= plain + 1e-9
    equal = min_norm_weights(rows @ rows.T).weights @ rows
    assert_allclose(equal, rows[0], rtol=1e-14)


def test_a_hundred_rows_in_narrow_bounds_take_no_time() -> None:
    """The solver and the polishing are for m clients, not for a model: a handful of equations."""
    rows = stream(9, "hundred").normal(size=(100, 300))
    shares = np.full(100, 0.01)
    answer = min_norm_weights(rows @ rows.T, shares - 0.01, shares + 0.01)
    assert answer.decided_by == "primal active set"
    assert answer.residual <= 1e-12


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ([0.0, 0.0], [0.4, 0.4]),
        ([0.6, 0.6], [1.0, 1.0]),
        ([0.5, 0.2], [0.4, 1.0]),
        ([-0.1, 0.0], [1.0, 1.0]),
        ([0.0], [1.0]),
        ([math.nan, 0.0], [1.0, 1.0]),
    ],
)
def test_bounds_that_no_weights_satisfy_are_refused(low: list[float], high: list[float]) -> None:
    with pytest.raises(AggregationError, match="2 weights that can add up to 1"):
        min_norm_weights(np.eye(2), np.array(low), np.array(high))


@pytest.mark.parametrize(
    "gram", [np.zeros((0, 0)), np.ones((2, 3)), np.array([[1.0, math.nan], [math.nan, 1.0]])]
)
def test_what_is_no_gram_matrix_is_refused(gram: Matrix) -> None:
    with pytest.raises(AggregationError, match="at least one row"):
        min_norm_weights(gram)


def test_arguments_are_left_alone() -> None:
    gram, low, high = np.eye(3), np.array([0.5, 0.0, 0.0]), np.ones(3)
    min_norm_weights(gram)
    min_norm_weights(gram, low, high)
    assert_array_equal(gram, np.eye(3))
    assert_array_equal(low, [0.5, 0.0, 0.0])
    assert_array_equal(high, np.ones(3))
