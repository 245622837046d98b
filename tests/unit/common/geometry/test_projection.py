"""The projection onto half-spaces is right on ugly problems, and says so when there is none."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import AggregationError, ConfigError
from common.geometry import Projection, project_onto_halfspaces
from common.types import Matrix
from tests.unit.common.geometry.problems import FAMILIES, Problem, problems, reference

COUNT = 63  # of each of the 16 families: 1,008 problems
SOLVERS = ["osqp", "exact"]
U_0 = np.array([0.51622579822961, 0.85645252363584])  # unit mean of 10, 45 and 155 degrees


@pytest.fixture(autouse=True)
def _nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> object:
    yield
    assert capfd.readouterr() == ("", "")


def solve(problem: Problem, solver: str = "osqp") -> Projection:
    return project_onto_halfspaces(problem.target, problem.normals, problem.floors, solver=solver)


def compass(*degrees: float) -> Matrix:
    return np.array([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees])


def unit_mean(rows: Matrix) -> Matrix:
    return rows.mean(axis=0) / np.linalg.norm(rows.mean(axis=0))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_agrees_with_an_independent_solver_on_ugly_problems(family: str, solver: str) -> None:
    """To 1e-8 of the problem's size; the other solvers may give up on one problem in fifty.

    The size is the longer of target and answer, with the rows at unit length.
    """
    answered = 0
    for problem in problems(family, COUNT):
        answer = solve(problem, solver)
        assert answer.feasible == problem.feasible
        expected = reference(problem) if problem.feasible else problem.target
        if expected is not None:
            error = np.linalg.norm(answer.point - expected) / problem.size(expected)
            assert error <= 1e-8
            answered += 1
    assert answered >= 0.98 * COUNT


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_meets_the_optimality_conditions_or_proves_a_conflict(family: str, solver: str) -> None:
    for problem in problems(family, 20):
        answer = solve(problem, solver)
        units, levels = problem.units()
        size, mu = problem.size(answer.point), answer.multipliers
        if answer.feasible:
            lengths = np.linalg.norm(problem.normals, axis=1)
            slack = (units @ answer.point - levels) / size
            rest = answer.point - problem.target - problem.normals.T @ mu
            assert slack.min() >= -1e-12
            assert np.linalg.norm(rest) <= 1e-9 * size
            assert np.abs(mu * lengths / size * slack).max() <= 1e-9
            assert not answer.conflict.any()
            assert answer.residuals.largest() <= 1e-9
        else:
            assert answer.conflict.min() >= 0
            assert answer.conflict.sum() == pytest.approx(1)
            assert np.linalg.norm(answer.conflict @ units) <= 1e-12
            assert answer.conflict @ levels > 0
            assert_array_equal(answer.point, problem.target)
            assert not mu.any()
            assert answer.residuals.primal > 0 or answer.decided_by == "a row of zeros"
        assert mu.min() >= 0
        assert_array_equal(answer.active, np.flatnonzero(mu > 0))


@pytest.mark.parametrize("family", FAMILIES)
def test_neither_order_nor_row_lengths_nor_units_nor_duplicates_matter(family: str) -> None:
    for k, problem in enumerate(problems(family, 12)):
        rng = np.random.default_rng(k)
        m, point = len(problem.floors), solve(problem).point
        size = problem.size(point)
        same = {
            "order": problem.ordered(rng.permutation(m)),
            "lengths": problem.scaled(10.0 ** rng.uniform(-12, 12, size=m), 1.0),
            "duplicates": problem.ordered(np.concatenate([np.arange(m), rng.integers(m, size=5)])),
        }
        for other in same.values():
            assert np.linalg.norm(solve(other).point - point) <= 1e-8 * size
        whole = 2.0**-40
        larger = solve(problem.scaled(np.ones(m), whole)).point / whole
        assert np.linalg.norm(larger - point) <= 1e-8 * size


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("tau", "active", "multipliers", "point", "progress"),
    [
        (
            0.0,
            [2],
            [0.10590698400229],
            [0.42024147392677, 0.90121074912109],
            [0.57035066593908, 0.93440782793118, 0],
        ),
        (
            0.02,
            [2],
            [0.12590698400229],
            [0.40211531818603, 0.90966311435590],
            [0.55396762505330, 0.92756742506466, 0.02],
        ),
        (
            0.25,
            [2],
            [0.35590698400229],
            [0.19366452716760, 1.0068653145563],
            [0.36556265486684, 0.84890279209976, 0.25],
        ),
        (
            1.0,
            [0, 2],
            [3.7958650730185, 4.2152976184106],
            [0.43406609528393, 3.2970593284474],
            [1, 2.6383040885780, 1],
        ),
    ],
)
def test_the_page_example(
    tau: float,
    active: list[int],
    multipliers: list[float],
    point: list[float],
    progress: list[float],
    solver: str,
) -> None:
    """Unit clients at 10, 45 and 155 degrees, equal weights; computed with 40 digits."""
    rows = compass(10, 45, 155)
    assert_allclose(unit_mean(rows), U_0, rtol=0, atol=1e-13)
    answer = project_onto_halfspaces(unit_mean(rows), rows, np.full(3, tau), solver=solver)
    assert answer.feasible
    assert answer.active.tolist() == active
    assert_allclose(answer.multipliers[active], multipliers, rtol=1e-12)
    assert_allclose(answer.point, point, rtol=1e-12)
    assert_allclose(rows @ answer.point, progress, rtol=0, atol=4e-12)


def test_clients_that_agree_leave_the_mean_untouched() -> None:
    rows = compass(35, 60, 85)
    answer = project_onto_halfspaces(unit_mean(rows), rows, np.full(3, 0.25))
    assert_array_equal(answer.point, unit_mean(rows))
    assert answer.decided_by == "nothing to do"
    assert answer.active.size == 0


def test_one_client_holds_its_ground_against_two() -> None:
    """Clients at 20, 150 and 165 degrees, tau 0.25."""
    rows = compass(20, 150, 165)
    answer = project_onto_halfspaces(unit_mean(rows), rows, np.full(3, 0.25))
    assert answer.active.tolist() == [0]
    assert answer.multipliers[0] == pytest.approx(0.57599157871825, rel=1e-12)
    assert_allclose(answer.point, [-0.088413341873861, 0.97386476041773], rtol=1e-12)


def test_opposed_clients_are_told_as_infeasible_with_the_conflict() -> None:
    """(1, 0) and (-0.5, 0) cannot both gain; in unit rows each carries half of the conflict."""
    rows, mean = np.array([[1.0, 0.0], [-0.5, 0.0], [0.0, 1.0]]), np.array([1.0, 2.0]) / 6
    answer = project_onto_halfspaces(mean, rows, 0.1 * (rows**2).sum(axis=1))
    assert not answer.feasible
    assert_array_equal(answer.point, mean)
    assert_allclose(answer.conflict, [0.5, 0.5, 0.0], atol=1e-15)


def test_opposed_clients_are_feasible_at_tau_zero() -> None:
    rows, mean = np.array([[1.0, 0.0], [-0.5, 0.0], [0.0, 1.0]]), np.array([1.0, 2.0]) / 5**0.5
    answer = project_onto_halfspaces(mean, rows, np.zeros(3))
    assert answer.feasible
    assert_allclose(answer.point, [0.0, 0.894427190998], atol=2e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_two_rows_a_millionth_apart_have_their_closed_form(solver: str) -> None:
    """Rows (cos a, +-sin a) meet at (1/cos a, 0); rows (sin a, +-cos a) at (1/sin a, 0)."""
    sine, cosine = math.sin(1e-6), math.cos(1e-6)
    parallel = np.array([[cosine, sine], [cosine, -sine]])
    answer = project_onto_halfspaces(np.zeros(2), parallel, np.ones(2), solver=solver)
    assert_allclose(answer.point, [1 / cosine, 0], rtol=0, atol=1e-9)
    opposed = np.array([[sine, cosine], [sine, -cosine]])
    answer = project_onto_halfspaces(np.zeros(2), opposed, np.ones(2), solver=solver)
    assert_allclose(answer.point, [1 / sine, 0], rtol=1e-9, atol=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_conflict_within_rounding_is_none_and_holds_nobody_else_up(solver: str) -> None:
    """x_1 >= 1 and -x_1 >= -1 + 2e-13 miss by a hair; x_2 >= 1e-13 can be had."""
    rows = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    floors = np.array([1.0, -1.0 + 2e-13, 1.5e-13])
    answer = project_onto_halfspaces(np.zeros(3), rows, floors, solver=solver)
    assert answer.feasible
    assert_allclose(answer.point, [1.0, 1.5e-13, 0.0], rtol=1e-12)
    floors[1] = -1.0 + 1e-9
    assert not project_onto_halfspaces(np.zeros(3), rows, floors, solver=solver).feasible


def test_opposed_rows_may_leave_one_plane() -> None:
    """x_1 >= 2 and -x_1 >= -2, told with rows of other lengths."""
    rows = np.array([[3.0, 0.0], [-7.0, 0.0]])
    answer = project_onto_halfspaces(np.array([5.0, 1.0]), rows, np.array([6.0, -14.0]))
    assert answer.feasible
    assert_allclose(answer.point, [2.0, 1.0])


def test_the_distance_never_falls_as_tau_grows() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(40, 60))
        rows /= np.linalg.norm(rows, axis=1)[:, None]
        mean = unit_mean(rows[:5])
        distances = [
            np.linalg.norm(project_onto_halfspaces(mean, rows, np.full(40, tau)).point - mean)
            for tau in (0.0, 0.005, 0.02, 0.1, 0.25, 1.0)
        ]
        assert (np.diff(distances) > 0).all()


def test_a_target_on_the_boundary_is_returned_bit_for_bit() -> None:
    """One client at tau 1 asks for what it has, up to the last bit of a dot product."""
    for seed in range(100):
        row = np.random.default_rng(seed).normal(size=(1, 1000))
        row /= np.linalg.norm(row)
        answer = project_onto_halfspaces(row[0], row, np.ones(1))
        assert_array_equal(answer.point, row[0])
        assert answer.decided_by == "nothing to do"


def test_no_rows_and_one_dimension() -> None:
    assert_array_equal(
        project_onto_halfspaces(np.arange(3.0), np.zeros((0, 3)), np.zeros(0)).point, [0, 1, 2]
    )
    one = project_onto_halfspaces(np.array([1.0]), np.array([[2.0], [-1.0]]), np.array([6.0, -9.0]))
    assert_allclose(one.point, [3.0])
    assert_allclose(one.multipliers, [1.0, 0.0])


def test_a_row_of_zeros_asks_for_zero_to_reach_its_floor() -> None:
    rows, target = np.array([[0.0, 0.0], [1.0, 0.0]]), np.zeros(2)
    content = project_onto_halfspaces(target, rows, np.array([0.0, 2.0]))
    assert_allclose(content.point, [2.0, 0.0])
    assert content.multipliers[0] == 0
    asking = project_onto_halfspaces(target, rows, np.array([1e-300, 2.0]))
    assert (asking.feasible, asking.decided_by) == (False, "a row of zeros")
    assert_array_equal(asking.conflict, [1.0, 0.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("name", ["target", "normals", "floors"])
def test_refuses_what_is_not_finite_and_names_the_row(name: str, bad: float) -> None:
    arguments = {"target": np.ones(3), "normals": np.ones((4, 3)), "floors": np.zeros(4)}
    arguments[name][2] = bad
    with pytest.raises(AggregationError, match=f"{name}.*row 2"):
        project_onto_halfspaces(**arguments)


def test_refuses_shapes_that_do_not_fit_and_solvers_that_do_not_exist() -> None:
    with pytest.raises(AggregationError, match=r"normals of the shape \(3, 2\), got \(2, 3\)"):
        project_onto_halfspaces(np.ones(2), np.ones((2, 3)), np.ones(3))
    with pytest.raises(ConfigError, match='did you mean "osqp"'):
        project_onto_halfspaces(np.ones(2), np.ones((3, 2)), np.ones(3), solver="osq")


def test_arguments_are_left_alone() -> None:
    target, normals, floors = np.ones(3), 2 * np.eye(3), np.full(3, 5.0)
    project_onto_halfspaces(target, normals, floors)
    assert_array_equal(target, np.ones(3))
    assert_array_equal(normals, 2 * np.eye(3))
    assert_array_equal(floors, np.full(3, 5.0))
