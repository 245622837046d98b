"""Many rows have the answer of all of them, found from the few that decide."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import AggregationError
from common.geometry import DualSolution, project_onto_halfspaces, solve_dual, working_set
from common.geometry.dual_active_set import LeastDistanceProgram, Solution, solve_least_distance
from common.rng import stream
from common.types import Matrix, Vector
from tests.unit.common.geometry.problems import FAMILIES, problems

EASY = sorted(set(FAMILIES) - {"nearly_opposed"})  # that one needs more than a Gram matrix knows
GUESSES = {
    "nobody": lambda _, __, gaps: np.zeros(gaps.size, dtype=bool),
    "the wrong ones": lambda _, __, gaps: gaps <= np.median(gaps),
    "its own": working_set._predict_active,
}
MANY = {  # m, d, share of the rows that pull against the others, tau
    "few lack": (450, 600, 0.02, 0.02),
    "a third lacks": (450, 600, 0.3, 0.02),
    "all lack": (350, 500, 0.5, 1.0),
    "more rows than dimensions": (450, 150, 0.05, 0.02),
}


@pytest.fixture
def guess(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the prediction of active rows by one of GUESSES."""
    monkeypatch.setattr(working_set, "_predict_active", GUESSES[request.param])


def clients(m: int, d: int, against: float, tau: float) -> tuple[Matrix, Vector]:
    """Return unit rows [m, d] that share a direction or oppose it, and their gaps at the mean."""
    rng = stream(8, "few rows", m, d)
    sign = np.where(rng.random(m) < against, -0.3, 1.0)
    rows = sign[:, None] * rng.normal(size=d) + rng.normal(size=(m, d))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    mean = rows[: m // 11].mean(axis=0)
    return rows, tau - rows @ (mean / np.linalg.norm(mean))


def at_once(monkeypatch: pytest.MonkeyPatch, gram: Matrix, gaps: Vector) -> DualSolution:
    with monkeypatch.context() as patch:
        patch.setattr(working_set, "WORKING_SET_SIZE", len(gaps))
        return solve_dual(gram, gaps)


def assert_optimal(rows: Matrix, gaps: Vector, multipliers: Vector) -> None:
    """Judge on the rows themselves, every one of them."""
    slack = rows @ (multipliers @ rows) - gaps
    assert multipliers.min() >= 0
    assert slack.min() >= -1e-12
    assert np.abs(multipliers * slack).max() <= 1e-12


@pytest.fixture
def factored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that were solved for, turn by turn."""
    sizes: list[int] = []

    def noted(program: LeastDistanceProgram, *rest: Any) -> Solution:
        sizes.append(program.gaps.size)
        return solve_least_distance(program, *rest)

    monkeypatch.setattr(working_set, "solve_least_distance", noted)
    return sizes


@pytest.mark.usefixtures("guess")
@pytest.mark.parametrize("guess", GUESSES, indirect=True)
@pytest.mark.parametrize("family", EASY)
def test_ugly_problems_are_solved_three_rows_at_a_time_whatever_is_guessed(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_set, "WORKING_SET_SIZE", 3)
    for problem in problems(family, 7):
        rows, target = problem.normals, problem.target
        length = float(np.linalg.norm(target))
        answer = solve_dual(rows @ rows.T, problem.floors - rows @ target, target_length=length)
        assert answer.feasible == problem.feasible
        if answer.feasible:
            expected = project_onto_halfspaces(target, rows, problem.floors).point
            point = target + rows.T @ answer.multipliers
            assert np.linalg.norm(point - expected) <= 1e-9 * problem.size(expected)
            assert answer.residuals.largest() <= 1e-9
        else:
            units, levels = problem.units()
            assert not answer.multipliers.any()
            assert answer.conflict.sum() == pytest.approx(1)
            assert np.linalg.norm(answer.conflict @ units) <= 1e-7
            assert answer.conflict @ levels > 0


@pytest.mark.parametrize("case", MANY)
def test_many_rows_have_the_answer_of_all_at_once(
    case: str, monkeypatch: pytest.MonkeyPatch, factored: list[int]
) -> None:
    rows, gaps = clients(*MANY[case])
    answer = solve_dual(rows @ rows.T, gaps)
    assert max(factored) < len(gaps)
    assert_optimal(rows, gaps, answer.multipliers)
    assert answer.residuals.largest() <= 1e-12
    whole = at_once(monkeypatch, rows @ rows.T, gaps)
    assert factored[-1] == len(gaps)
    assert_array_equal(answer.active, whole.active)
    assert_allclose(answer.multipliers, whole.multipliers, rtol=0, atol=1e-12)


def test_the_rows_with_a_multiplier_are_guessed_so_that_only_they_are_factored(
    factored: list[int],
) -> None:
    rows, gaps = clients(*MANY["a third lacks"])
    answer = solve_dual(rows @ rows.T, gaps)
    assert factored == [answer.active.size]


def test_where_nothing_is_lacking_nothing_is_factored(factored: list[int]) -> None:
    rows, gaps = clients(*MANY["few lack"])
    answer = solve_dual(rows @ rows.T, gaps - 2.0)
    assert answer.decided_by == "nothing to do"
    assert factored == [0]


def test_up_to_200_rows_are_solved_at_once(factored: list[int]) -> None:
    rows, gaps = clients(200, 300, 0.05, 0.02)
    solve_dual(rows @ rows.T, gaps)
    assert factored == [200]


@pytest.mark.usefixtures("guess")
@pytest.mark.parametrize("guess", ["nobody", "its own"], indirect=True)
def test_rows_that_are_repeated_share_what_one_of_them_would_get() -> None:
    some, lacking = clients(40, 60, 0.3, 0.25)
    one = solve_dual(some @ some.T, lacking)
    order = stream(8, "order").permutation(np.repeat(np.arange(40), 20))
    rows, gaps = some[order], lacking[order]
    answer = solve_dual(rows @ rows.T, gaps)
    assert_optimal(rows, gaps, answer.multipliers)
    shared = np.bincount(order, weights=answer.multipliers)
    assert_allclose(shared, one.multipliers, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("guess")
@pytest.mark.parametrize("guess", ["nobody", "its own"], indirect=True)
def test_a_conflict_of_rows_that_lack_nothing_at_first_is_found_among_many() -> None:
    """Three of 402 rows add up to zero, and ask for a little each; only one of them lacks it."""
    rows, _ = clients(400, 500, 0.0, 0.0)
    rows[:2] -= rows[:2].mean(axis=0) / 2
    against = -(rows[0] + rows[1])[None]
    rows = np.vstack([rows, against, rows[:1]])
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    target = -3.0 * rows[400]
    gaps = 0.02 - rows @ target
    assert (gaps[[0, 1, 400]] > 0).tolist() == [False, False, True]
    answer = solve_dual(rows @ rows.T, gaps)
    assert not answer.feasible
    assert not answer.multipliers.any()
    assert answer.conflict.shape == (402,)
    assert np.linalg.norm(answer.conflict @ rows) <= 1e-7
    assert answer.conflict @ gaps > 0.01
    assert answer.residuals.primal == pytest.approx(1.0)


def test_a_row_of_zeros_that_asks_is_found_among_many(factored: list[int]) -> None:
    rows, gaps = clients(*MANY["few lack"])
    rows[333], gaps[333] = 0.0, 1e-300
    answer = solve_dual(rows @ rows.T, gaps)
    assert (answer.feasible, answer.decided_by) == (False, "a row of zeros")
    assert np.flatnonzero(answer.conflict).tolist() == [333]
    assert len(factored) == 1


def test_rows_that_never_get_a_multiplier_come_in_twice_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a row does that is in a conflict too faint to count, which no answer satisfies."""
    asked: list[int] = []

    def barren(program: LeastDistanceProgram, *_: object) -> Solution:
        k = program.gaps.size
        asked.append(k)
        assert len(asked) <= 2 * 7 + 1
        return Solution(np.zeros(k), np.zeros(k), "barren", True, np.zeros(k))

    monkeypatch.setattr(working_set, "WORKING_SET_SIZE", 2)
    monkeypatch.setattr(working_set, "_predict_active", GUESSES["nobody"])
    monkeypatch.setattr(working_set, "solve_least_distance", barren)
    answer = solve_dual(np.eye(7), np.ones(7))
    assert asked[-1] == 7
    assert answer.residuals.primal == 1.0


def test_rows_that_depend_to_the_last_bit_do_not_stop_the_guess() -> None:
    """Their products are 1 + 1e-9 beside squares that the guess makes 1 + 1e-9."""
    gram = np.full((300, 300), 1.0 + working_set.DIAGONAL_SHIFT)
    np.fill_diagonal(gram, 1.0)
    answer = solve_dual(gram, np.full(300, 0.5))
    assert answer.multipliers.sum() == pytest.approx(0.5, rel=1e-6)


def test_an_indefinite_matrix_is_refused_where_the_rows_that_decide_show_it() -> None:
    gram = np.eye(300)
    gram[:3, :3] = [[1.0, -0.9, -0.9], [-0.9, 1.0, -0.9], [-0.9, -0.9, 1.0]]
    with pytest.raises(AggregationError, match="inner_products"):
        solve_dual(gram, np.ones(300))
    content = np.where(np.arange(300) < 3, -1.0, 1.0)
    assert_array_equal(solve_dual(gram, content).active, np.arange(3, 300))


@pytest.mark.parametrize(("i", "j"), [(3, 140), (140, 3), (70, 70), (149, 148)])
def test_every_product_is_checked_whoever_decides(i: int, j: int) -> None:
    gram = np.eye(150)
    gram[i, j] = -1e-5 if i == j else 1e-5
    with pytest.raises(AggregationError, match=f"rows {min(i, j)} and {max(i, j)}"):
        solve_dual(gram, np.full(150, -1.0))


def test_arguments_are_left_alone() -> None:
    rows, gaps = clients(*MANY["a third lacks"])
    gram = rows @ rows.T
    kept, lacking = gram.copy(), gaps.copy()
    solve_dual(gram, gaps)
    assert_array_equal(gram, kept)
    assert_array_equal(gaps, lacking)
