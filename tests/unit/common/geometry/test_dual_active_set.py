"""From the Gram matrix alone the same multipliers come out, whatever the QP solver says."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import qpsolvers
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import AggregationError
from common.geometry import dual_active_set, project_onto_halfspaces, solve_dual
from common.types import Matrix, Vector
from tests.unit.common.geometry.problems import FAMILIES, problems

EASY = sorted(set(FAMILIES) - {"nearly_opposed"})  # that one needs more than a Gram matrix knows


@pytest.fixture(autouse=True)
def _nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> object:
    yield
    assert capfd.readouterr() == ("", "")


def clients(m: int, d: int = 200, tau: float = 0.25) -> tuple[Matrix, Vector, Matrix]:
    """Return the unit rows of m clients and what they lack at their skewed unit mean."""
    rng = np.random.default_rng(m)
    rows = rng.normal(size=(m, d))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    mean = rng.dirichlet(np.full(m, 0.3)) @ rows
    mean /= np.linalg.norm(mean)
    return rows, tau - rows @ mean, mean


@pytest.mark.parametrize("family", EASY)
def test_gives_the_projection_of_the_rows_themselves(family: str) -> None:
    for problem in problems(family, 30):
        rows, target = problem.normals, problem.target
        expected = project_onto_halfspaces(target, rows, problem.floors)
        answer = solve_dual(
            rows @ rows.T,
            problem.floors - rows @ target,
            target_length=float(np.linalg.norm(target)),
        )
        assert answer.feasible == problem.feasible
        point = target + rows.T @ answer.multipliers
        assert np.linalg.norm(point - expected.point) <= 1e-9 * problem.size(expected.point)
        assert answer.multipliers.min() >= 0
        if answer.feasible:
            assert answer.residuals.largest() <= 1e-9
        else:
            assert np.linalg.norm(answer.conflict @ problem.units()[0]) <= 1e-7


def test_nearly_opposed_rows_are_solved_to_what_a_gram_matrix_knows() -> None:
    """Its rounding, 1e-16, is 1e-6 of the square of an angle of 1e-5."""
    for problem in problems("nearly_opposed", 30):
        rows, target = problem.units()[0], problem.target
        levels = problem.units()[1]
        expected = project_onto_halfspaces(target, rows, levels)
        answer = solve_dual(rows @ rows.T, levels - rows @ target)
        point = target + rows.T @ answer.multipliers
        assert answer.feasible
        assert np.linalg.norm(point - expected.point) <= 1e-4 * problem.size(expected.point)


def cancelling(seed: int) -> tuple[Matrix, Vector]:
    """Return float32 rows of which a positive sum is zero, bar rounding, and their unit mean."""
    rng = np.random.default_rng(seed)
    some = rng.normal(size=(int(rng.integers(1, 20)), 1000))
    others = rng.normal(size=(int(rng.integers(0, 20)), 1000))
    against = -rng.uniform(0.05, 1.0, size=len(some)) @ some
    rows = np.vstack([some, against, others]).astype(np.float32).astype(np.float64)
    rows = rng.permutation(rows / np.linalg.norm(rows, axis=1)[:, None])
    mean = rng.dirichlet(np.ones(len(rows))) @ rows
    return rows, mean / np.linalg.norm(mean)


@pytest.mark.parametrize("solver", ["osqp", "exact"])
@pytest.mark.parametrize("tau", [0.005, 0.02, 1.0])
def test_float32_clients_that_cancel_are_infeasible(tau: float, solver: str) -> None:
    """Rounding to float32 leaves 1e-8 of a sum that is zero; no step may be taken along it."""
    for seed in range(30):
        rows, mean = cancelling(seed)
        answer = solve_dual(rows @ rows.T, tau - rows @ mean, solver=solver)
        assert not answer.feasible
        assert np.linalg.norm(answer.conflict @ rows) <= 1e-7


@pytest.mark.parametrize(("angle", "feasible"), [(1.5e-7, False), (1e-5, True)])
def test_two_clients_conflict_if_they_are_opposed_to_the_last_bits_of_float32(
    angle: float, feasible: bool
) -> None:
    rows = np.array([[1.0, 0.0], [-math.cos(angle), math.sin(angle)]])
    answer = solve_dual(rows @ rows.T, np.full(2, 0.02))
    assert answer.feasible == feasible


def test_float32_clients_that_cancel_are_feasible_at_tau_zero() -> None:
    for seed in range(120):
        rows, mean = cancelling(seed)
        answer = solve_dual(rows @ rows.T, -rows @ mean)
        assert answer.feasible
        assert answer.residuals.primal <= 1e-6


# A public report of this bug: https://github.com/osqp/osqp/issues/389
def test_multipliers_are_never_negative_and_always_exact() -> None:
    for m in range(2, 101):
        rows, gaps, _ = clients(m)
        for scale in (np.ones(m), np.append(np.ones(m - 1), 1000.0)):
            gram = rows @ rows.T * np.outer(scale, scale)
            answer = solve_dual(gram, gaps * scale)
            pulls = answer.multipliers * scale
            slack = rows @ rows.T @ pulls - gaps
            assert answer.multipliers.min() >= 0
            assert slack.min() >= -1e-9
            assert np.abs(pulls * slack).max() <= 1e-9
            assert answer.residuals.largest() <= 1e-9


@pytest.mark.parametrize("m", [1, 2, 5, 100])
@pytest.mark.parametrize("tau", [0.0, 0.02, 1.0])
def test_identical_clients_get_what_they_all_want(m: int, tau: float) -> None:
    """The mean of identical unit rows is that row: nothing to do, even at tau 1."""
    row = clients(1)[0][0]
    rows = np.tile(row, (m, 1))
    answer = solve_dual(rows @ rows.T, tau - rows @ row, target_length=1.0)
    assert answer.decided_by == "nothing to do"
    assert not answer.multipliers.any()


@pytest.mark.parametrize("m", [1, 2, 100])
def test_identical_clients_share_one_correction(m: int) -> None:
    """Identical rows that all lack 0.5: their multipliers add up to that of one row."""
    answer = solve_dual(np.ones((m, m)), np.full(m, 0.5))
    assert answer.multipliers.sum() == pytest.approx(0.5, rel=1e-12)


# A public report of this bug: https://github.com/qpsolvers/qpsolvers/issues/197
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_refuses_what_is_not_finite_and_names_the_row(bad: float) -> None:
    gram, gaps = np.eye(4), np.ones(4)
    gram[3, 0] = bad
    with pytest.raises(AggregationError, match=r"gram.*row 3"):
        solve_dual(gram, gaps)
    gaps[1] = bad
    with pytest.raises(AggregationError, match=r"gaps.*row 1"):
        solve_dual(np.eye(4), gaps)


@pytest.mark.parametrize(
    "gram",
    [
        -np.eye(3),
        np.array([[1.0, 2.0], [2.0, 1.0]]),
        np.array([[0.0, 1.0], [1.0, 1.0]]),
        np.array([[1.0, 0.5], [-0.5, 1.0]]),
        np.array([[1.0, -0.9, -0.9], [-0.9, 1.0, -0.9], [-0.9, -0.9, 1.0]]),
    ],
)
def test_refuses_what_cannot_be_a_gram_matrix(gram: Matrix) -> None:
    with pytest.raises(AggregationError, match="inner_products"):
        solve_dual(gram, np.ones(len(gram)))


def test_rounding_may_make_the_gram_matrix_indefinite() -> None:
    rows, gaps, _ = clients(20, d=5, tau=0.0)
    gram = rows @ rows.T
    noise = np.random.default_rng(0).normal(size=gram.shape)
    answer = solve_dual(gram + 1e-15 * (noise + noise.T), gaps)
    assert np.linalg.eigvalsh(gram + 1e-15 * (noise + noise.T)).min() < 0
    assert answer.feasible
    assert answer.residuals.largest() <= 1e-9


def test_no_clients() -> None:
    answer = solve_dual(np.zeros((0, 0)), np.zeros(0))
    assert answer.feasible
    assert answer.multipliers.shape == (0,)


def test_opposed_clients_are_in_conflict() -> None:
    answer = solve_dual(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([0.1, 0.3]))
    assert not answer.feasible
    assert not answer.multipliers.any()
    assert_allclose(answer.conflict, [0.5, 0.5])


def test_a_client_that_sent_zeros_constrains_nothing() -> None:
    gram, gaps = np.diag([1.0, 0.0]), np.array([0.5, 0.0])
    answer = solve_dual(gram, gaps)
    assert_allclose(answer.multipliers, [0.5, 0.0])
    assert not solve_dual(gram, np.array([0.5, 0.1])).feasible


def test_an_interrupted_solver_ends_in_the_exact_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, gaps, _ = clients(70)
    expected = solve_dual(rows @ rows.T, gaps)
    monkeypatch.setitem(dual_active_set.SETTINGS["osqp"], "max_iter", 1)
    answer = solve_dual(rows @ rows.T, gaps)
    assert (expected.decided_by, answer.decided_by) == ("osqp", "dual active set")
    assert_allclose(answer.multipliers, expected.multipliers, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "word",
    [None, math.nan, 0.0, 1.0, -1.0, 1e300, "raises", "reversed"],
)
def test_a_solver_that_lies_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, word: float | str | None
) -> None:
    rows, gaps, _ = clients(30)
    expected = solve_dual(rows @ rows.T, gaps, solver="exact")

    def liar(problem: qpsolvers.Problem, *_: object, **__: object) -> SimpleNamespace:
        if word == "raises":
            raise RuntimeError("out of memory")
        if word == "reversed":
            return SimpleNamespace(x=expected.multipliers.max() - expected.multipliers)
        return SimpleNamespace(x=None if word is None else np.full(len(problem.q), word))

    monkeypatch.setattr(qpsolvers, "solve_problem", liar)
    answer = solve_dual(rows @ rows.T, gaps)
    assert answer.decided_by == "dual active set"
    assert_array_equal(answer.multipliers, expected.multipliers)


def test_any_qp_solver_may_be_asked() -> None:
    rows, gaps, _ = clients(30)
    by_quadprog = solve_dual(rows @ rows.T, gaps, solver="quadprog")
    assert by_quadprog.decided_by == "quadprog"
    by_osqp = solve_dual(rows @ rows.T, gaps)
    assert_allclose(by_quadprog.multipliers, by_osqp.multipliers, atol=1e-12)


@pytest.mark.parametrize("length", [math.nan, math.inf, "x", None])
def test_a_target_length_that_is_no_number_is_refused(length: Any) -> None:
    with pytest.raises(AggregationError, match="target_length"):
        solve_dual(np.eye(2), np.ones(2), target_length=length)
