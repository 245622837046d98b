"""FedPCD keeps its promises on random cohorts and at every edge."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.linalg import norm
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import AggregationError, ConfigError
from common.methods import FedPCD
from common.methods.history import History
from common.rng import stream
from common.types import Step, Vector
from server_app.round.sampling import sample_clients
from tests.builders import TOY3, cohort_of, layout_of_size, most_remembered
from tests.each import for_each
from tests.unit.common.methods.fedpcd_cases import (
    LAYOUT,
    PAGE,
    bent_point,
)

# ---------------------------------------------------------------- promises


def disagreeing(seed: int, m: int = 8, d: int = 40) -> Vector:
    """Random clients with a common part, of very different lengths, some of them in conflict."""
    rng = stream(seed, "clients")
    return rng.normal(size=(m, d)) * rng.uniform(0.1, 10, (m, 1)) + 0.2


SEEDS = range(6)


@for_each("seed", SEEDS)
@for_each("tau", [0.0, 0.05, 0.5])
def test_the_direction_meets_the_conditions_of_an_optimum(seed: int, tau: float) -> None:
    rows, sizes = disagreeing(seed), list(range(1, 9))
    cohort = cohort_of(rows, sizes)
    step = FedPCD(tau=tau).aggregate(cohort, History(), LAYOUT)
    mean = cohort.mean(cohort.shares)
    units, target = rows / norm(rows, axis=1, keepdims=True), mean / norm(mean)
    mu = np.array([step.report["multipliers"].get(str(k + 1), 0.0) for k in range(8)])
    point = bent_point(step)
    slack = units @ point - tau
    assert step.report["active"] > 0
    assert step.report["residual"] <= 1e-9
    assert (mu >= 0).all()
    assert (slack >= -1e-9).all()
    assert_allclose(mu * slack, 0, atol=1e-9)
    assert_allclose(point, target + mu @ units, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_step_is_as_long_as_the_mean(seed: int) -> None:
    cohort = cohort_of(disagreeing(seed))
    step = FedPCD(tau=0.1).aggregate(cohort, History(), LAYOUT)
    assert norm(step.direction) == pytest.approx(norm(cohort.mean(cohort.shares)), rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_larger_tau_never_stays_nearer_to_the_mean(seed: int) -> None:
    cohort = cohort_of(disagreeing(seed))
    mean = cohort.mean(cohort.shares)
    distances = []
    for tau in (0.0, 0.01, 0.05, 0.1, 0.3, 1.0):
        step = FedPCD(tau=tau).aggregate(cohort, History(), LAYOUT)
        distances.append(norm(bent_point(step) - mean / norm(mean)))
    assert all(near <= far + 1e-12 for near, far in pairwise(distances))
    assert distances[0] < distances[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_which_client_is_called_what_does_not_matter(seed: int) -> None:
    rows, sizes = disagreeing(seed), list(range(3, 11))
    order = stream(seed, "order").permutation(8)
    one = FedPCD().aggregate(cohort_of(rows, sizes), History(), LAYOUT)
    other = FedPCD().aggregate(cohort_of(rows[order], [sizes[k] for k in order]), History(), LAYOUT)
    assert_allclose(other.direction, one.direction, rtol=1e-9, atol=1e-12)


def two_rounds(first: Vector, second: Vector, *, gap: int = 1, **settings: Any) -> Step[History]:
    """Clients a, b, ... in round 1, others 1 + gap."""
    names = [f"a{k}" for k in range(len(first))]
    method = FedPCD(tau=0.1, **settings)
    state = method.aggregate(cohort_of(first, names=names), History(), LAYOUT).state
    return method.aggregate(cohort_of(second, round=1 + gap), state, LAYOUT)


@for_each("seed", SEEDS)
@for_each("factor", [1e-6, 3.0, 1e6])
def test_the_length_of_a_remembered_update_does_not_matter(seed: int, factor: float) -> None:
    rows = disagreeing(seed)
    scaled = rows.copy()
    scaled[1] *= factor
    one, other = two_rounds(rows[:4], rows[4:]), two_rounds(scaled[:4], rows[4:])
    assert one.report["active"] > 0
    assert_allclose(other.direction, one.direction, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_constraint_twice_changes_nothing(seed: int) -> None:
    rows = disagreeing(seed)
    one = two_rounds(rows[:4], rows[4:])
    twice = two_rounds(rows[[0, 1, 2, 3, 0, 2]], rows[4:])
    present = two_rounds(np.vstack([rows[:4], rows[5:6]]), rows[4:])
    for other in (twice, present):
        assert_allclose(other.direction, one.direction, rtol=1e-8, atol=1e-10)


@for_each("seed", SEEDS)
@for_each("history", [0, 1, 3])
def test_an_absent_client_is_protected_for_exactly_the_windows_rounds(
    seed: int, history: int
) -> None:
    rows = disagreeing(seed)
    alone = FedPCD(tau=0.1).aggregate(cohort_of(rows[4:]), History(), LAYOUT)
    for gap in range(1, history + 1):
        step = two_rounds(rows[:4], rows[4:], gap=gap, history=history)
        assert step.report["history"] == 4
        assert (rows @ step.direction > 0).all()
    expired = two_rounds(rows[:4], rows[4:], gap=history + 1, history=history)
    assert expired.report["history"] == 0
    assert_array_equal(expired.direction, alone.direction)
    assert set(expired.state.seen.entries) == {"1", "2", "3", "4"}


def test_a_returning_client_overwrites_what_was_remembered_of_it() -> None:
    rows = disagreeing(1)
    method = FedPCD(tau=0.1)
    state = method.aggregate(cohort_of(rows[:4]), History(), LAYOUT).state
    again = method.aggregate(cohort_of(rows[4:], round=2), state, LAYOUT)
    alone = method.aggregate(cohort_of(rows[4:]), History(), LAYOUT)
    assert again.report["history"] == 0
    assert_array_equal(again.direction, alone.direction)
    assert {entry.round for entry in again.state.seen.entries.values()} == {2}
    assert_array_equal(again.state.seen.get("1"), rows[4])


def test_the_products_that_are_kept_are_those_of_the_remembered_updates() -> None:
    method, state = FedPCD(history=3), History()
    rng = stream(5, "rounds")
    for number in range(1, 12):
        names = sample_clients([str(k) for k in range(9)], 3, seed=1, round=number)
        rows = rng.normal(size=(3, 20)) + 0.1
        state = method.aggregate(cohort_of(rows, names=names, round=number), state, LAYOUT).state
        held = np.stack([state.seen.entries[client].vector for client in state.rates])
        assert_allclose(state.products, held @ held.T, rtol=1e-12, atol=1e-12)
        assert state.rates.keys() == state.seen.entries.keys()


def test_without_normalisation_updates_are_compared_as_gradients_of_their_own_round() -> None:
    """The displacement of a round with half the learning rate counts for the same gradient."""
    method = FedPCD(tau=0.1, normalise=False)
    directions = []
    for lr in (0.1, 0.05):
        first = cohort_of(TOY3[2:] * lr / 0.1, names=["3"], lr=lr)
        state = method.aggregate(first, History(), LAYOUT).state
        directions.append(method.aggregate(cohort_of(TOY3[:2], round=2), state, LAYOUT).direction)
    assert_allclose(directions[0], directions[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("history", "clients", "rows"), [(0, 9, 2), (1, 9, 4), (3, 9, 8), (10, 9, 9)]
)
def test_the_memory_that_is_announced_is_reached_and_never_exceeded(
    history: int, clients: int, rows: int
) -> None:
    """Cohorts of two that take turns fill the window with different clients."""
    method, most = FedPCD(history=history), 4 * rows * 50
    assert most_remembered(method, clients) == most
    assert 4 * method.state_floats(layout_of_size(50), clients, 2) == most


@pytest.mark.parametrize(
    ("clients", "history", "expected"), [(100, 0, 10), (100, 1, 19), (30, 10, 20.585682)]
)
def test_the_window_holds_as_many_distinct_clients_as_the_formula_says(
    clients: int, history: int, expected: float
) -> None:
    """N (1 - (1 - rho)^(H+1)) with rho = 0.1, over 300 rounds."""
    method, state = FedPCD(history=history), History()
    everybody, size = [str(k) for k in range(clients)], clients // 10
    counts = []
    for number in range(1, 301):
        names = sample_clients(everybody, size, seed=8, round=number)
        cohort = cohort_of(np.ones((size, 1)), names=names, round=number, clients=clients)
        step = method.aggregate(cohort, state, LAYOUT)
        state = step.state
        if number > history:
            counts.append(step.report["rows"])
    # neighbouring rounds share clients: only every (H+1)-th count is independent
    error = np.std(counts) / np.sqrt(len(counts) / (history + 1))
    assert np.mean(counts) == pytest.approx(expected, abs=4 * error)


# ---------------------------------------------------------------- edges


def test_one_client_alone_and_clients_without_an_update_change_nothing() -> None:
    rows = disagreeing(0)
    assert_array_equal(
        FedPCD().aggregate(cohort_of(rows[:1]), History(), LAYOUT).direction, rows[0]
    )
    still = FedPCD().aggregate(cohort_of(np.zeros((3, 4))), History(), LAYOUT)
    assert still.report["feasible"]
    assert_array_equal(still.direction, np.zeros(4))
    some = np.vstack([rows, np.zeros((1, rows.shape[1]))])
    step = FedPCD(tau=0.1).aggregate(cohort_of(some), History(), LAYOUT)
    assert step.report["feasible"]
    assert "9" not in step.report["multipliers"]


def test_a_mean_of_zero_is_no_step() -> None:
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]])
    for tau in (0.0, 0.1):
        step = FedPCD(tau=tau).aggregate(cohort_of(rows), History(), LAYOUT)
        assert_array_equal(step.direction, (0, 0))


def test_a_mean_of_zero_with_an_absent_client_to_serve_is_no_step() -> None:
    step = two_rounds(np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 0, 0], [-1.0, 0, 0.0]]))
    assert_array_equal(step.direction, np.zeros(3))


# A public report of this bug: https://github.com/osqp/osqp/issues/389
# A public report of this bug: https://github.com/qpsolvers/qpsolvers/issues/197
@for_each("seed", SEEDS)
@for_each("m", [1, 2, 20])
def test_the_solver_does_not_change_the_answer(seed: int, m: int) -> None:
    """One client, two identical ones, more than there are dimensions, one 1000 times larger."""
    rows = disagreeing(seed, m, 30)
    rows[0] *= 1000
    rows[-1] = rows[0]
    cohort = cohort_of(rows)
    exact = FedPCD(tau=0.1, solver="exact").aggregate(cohort, History(), LAYOUT)
    by_qp = FedPCD(tau=0.1, solver="osqp").aggregate(cohort, History(), LAYOUT)
    assert by_qp.report["feasible"] == exact.report["feasible"]
    assert_allclose(by_qp.direction, exact.direction, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_and_never_solved(bad: float) -> None:
    rows = disagreeing(0)
    rows[2, 3] = bad
    with np.errstate(invalid="ignore"), pytest.raises(AggregationError, match="finite"):
        FedPCD().aggregate(cohort_of(rows), History(), LAYOUT)


def test_float32_updates_get_a_float32_step_close_to_the_float64_one() -> None:
    rows = disagreeing(2, 12, 5000)
    exact = FedPCD(tau=0.1).aggregate(cohort_of(rows), History(), LAYOUT)
    step = FedPCD(tau=0.1).aggregate(cohort_of(rows.astype(np.float32)), History(), LAYOUT)
    assert step.direction.dtype == np.float32
    assert_allclose(step.direction, exact.direction, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setting", [{"tau": -0.1}, {"tau": 1.1}, {"tau": np.nan}, {"history": -1}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        FedPCD(**setting)
    with pytest.raises(ConfigError, match="no_such"):
        replace(FedPCD(), solver="no_such").aggregate(cohort_of(PAGE), History(), LAYOUT)
