"""FedMGDA+ takes the shortest combination of unit updates whose weights are near FedAvg's."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.geometry import min_norm
from common.methods import FedAvg, FedMGDA
from common.rng import stream
from common.types import Cohort, Vector
from tests.builders import TOY3, TOY3_EXAMPLES, assert_same, cohort_of, layout_of_size
from tests.each import for_each

LAYOUT = layout_of_size(2)
SOLVED = {"rtol": 0, "atol": 1e-7}  # as the answer of a QP solver


def direction(method: FedMGDA, cohort: Cohort) -> Vector:
    return method.aggregate(cohort, None, LAYOUT).direction


@pytest.mark.parametrize(
    ("epsilon", "weights", "d", "length", "at_1", "at_lr"),
    [
        (0.0, (0.5, 0.3, 0.2), (0.363196487105, 0.597654506265), 0.699358704174,
         (0.636803512895, 0.402345493735), (0.963680351289, 0.940234549373)),
        (0.1, (0.5, 0.2, 0.3), (0.242130991539, 0.547507536078), 0.598658432769,
         (0.757869008461, 0.452492463922), (0.975786900846, 0.945249246392)),
        (0.3, (0.5, 0.0, 0.5), (0.0, 0.447213595500), 0.447213595500,
         (1.0, 0.552786404500), (1.0, 0.955278640450)),
        (1.0, (0.5, 0.0, 0.5), (0.0, 0.447213595500), 0.447213595500,
         (1.0, 0.552786404500), (1.0, 0.955278640450)),
    ],
)  # fmt: skip
def test_toy3(
    epsilon: float,
    weights: tuple[float, ...],
    d: tuple[float, float],
    length: float,
    at_1: tuple[float, float],
    at_lr: tuple[float, float],
) -> None:
    """Steps of 1 and of the local learning rate, from theta = (1, 1)."""
    cohort = cohort_of(TOY3, TOY3_EXAMPLES)
    step = FedMGDA(epsilon=epsilon).aggregate(cohort, None, LAYOUT)
    assert_allclose(list(step.report["weights"].values()), weights, **SOLVED)
    assert_allclose(step.direction, d, **SOLVED)
    assert step.report["length_d"] == pytest.approx(length, abs=1e-7)
    assert_allclose(1 - step.direction, at_1, **SOLVED)
    short = direction(FedMGDA(epsilon=epsilon, eta_over_lr=1.0), cohort)
    assert_allclose(1 - short, at_lr, **SOLVED)


def test_the_third_client_of_toy3_loses_at_epsilon_0_and_gains_at_1() -> None:
    units = TOY3 / np.linalg.norm(TOY3, axis=1)[:, None]
    cohort = cohort_of(TOY3, TOY3_EXAMPLES)
    gains = units @ direction(FedMGDA(epsilon=0.0), cohort)
    assert gains[2] == pytest.approx(-0.057573593129, abs=1e-7)
    gains = units @ direction(FedMGDA(epsilon=1.0), cohort)
    assert_allclose(gains, (0.2, 0.424264068712, 0.2), **SOLVED)


@for_each("seed", range(20))
def test_epsilon_1_serves_everybody_by_the_square_of_its_length(seed: int) -> None:
    rng = stream(seed, "mgda")
    m, d = int(rng.integers(1, 12)), int(rng.integers(1, 40))
    rows = rng.normal(size=(m, d)) * 10.0 ** rng.uniform(-3, 3, size=(m, 1))
    cohort = cohort_of(rows, rng.integers(1, 100, size=m).tolist())
    step = direction(FedMGDA(epsilon=1.0), cohort)
    units = rows / np.linalg.norm(rows, axis=1)[:, None]
    assert (units @ step >= step @ step - 1e-9).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.1, 0.5, 1.0])
def test_weights_stay_within_epsilon_of_the_shares_and_no_shorter_ones_do(epsilon: float) -> None:
    """Against ten thousand random weights within the same bounds."""
    rng = stream(4, "mgda weights")
    rows = rng.normal(size=(4, 6)) + 0.3
    cohort = cohort_of(rows, (50, 30, 15, 5))
    step = FedMGDA(epsilon=epsilon).aggregate(cohort, None, LAYOUT)
    weights = np.array(list(step.report["weights"].values()))
    others = np.vstack([cohort.shares, rng.dirichlet(np.ones(4), size=10_000)])
    near = others[(np.abs(others - cohort.shares) <= epsilon + 1e-12).all(axis=1)]
    assert (np.abs(weights - cohort.shares) <= epsilon + 1e-9).all()
    units = rows / np.linalg.norm(rows, axis=1)[:, None]
    assert np.linalg.norm(weights @ units) <= np.linalg.norm(near @ units, axis=1).min() + 1e-9


def test_no_clients_length_counts_and_the_step_follows_the_local_rate() -> None:
    one = direction(FedMGDA(), cohort_of(TOY3, TOY3_EXAMPLES, lr=0.1))
    scaled = TOY3 * np.array([[1e-6], [1.0], [1e6]])
    other = direction(FedMGDA(), cohort_of(scaled, TOY3_EXAMPLES, lr=0.1))
    assert_allclose(other, one, rtol=1e-9)
    halved = direction(FedMGDA(), cohort_of(TOY3, TOY3_EXAMPLES, lr=0.05))
    assert_allclose(halved, one / 2, rtol=1e-12)
    assert np.linalg.norm(one) <= 1.0


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_rescaled_it_is_as_long_as_fedavgs_step(epsilon: float) -> None:
    cohort = cohort_of(TOY3, TOY3_EXAMPLES)
    plain = direction(FedMGDA(epsilon=epsilon), cohort)
    step = direction(FedMGDA(epsilon=epsilon, rescale=True), cohort)
    mean = FedAvg().aggregate(cohort, None, LAYOUT).direction
    assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(mean), rel=1e-12)
    assert_allclose(step / np.linalg.norm(step), plain / np.linalg.norm(plain), **SOLVED)
    assert_same(step, direction(FedMGDA(epsilon=epsilon, rescale=True, eta_over_lr=3.0), cohort))


def test_a_client_that_did_not_move_is_left_out() -> None:
    """The others' shares are taken among themselves, as if it had not replied."""
    rows = np.vstack([TOY3[:2], np.zeros(2), TOY3[2:]])
    step = FedMGDA().aggregate(cohort_of(rows, (50, 30, 900, 20)), None, LAYOUT)
    without = direction(FedMGDA(), cohort_of(TOY3, TOY3_EXAMPLES))
    assert_allclose(step.direction, without, rtol=1e-12)
    assert step.report["left_out"] == 1
    assert step.report["weights"]["3"] == 0.0


def test_one_client_is_its_own_unit_vector() -> None:
    step = direction(FedMGDA(), cohort_of([[3.0, 4.0]], lr=0.1))
    assert_allclose(step, (0.6, 0.8), rtol=1e-14)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_stationary_is_no_step_and_not_stretched(rescale: bool, dtype: type) -> None:
    """Three unit vectors that cancel, up to the rounding of their dtype."""
    angles = np.deg2rad([10, 130, 250])
    rows = np.column_stack([np.cos(angles), np.sin(angles)]).astype(dtype)
    for epsilon in (0.1, 1.0):
        step = direction(FedMGDA(epsilon=epsilon, rescale=rescale), cohort_of(rows))
        assert_array_equal(step, np.zeros(2, dtype))


def test_without_an_answer_the_weights_are_the_shares_and_the_record_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The solver is far off and the polishing is not let run."""
    monkeypatch.setattr(min_norm, "solve_qp", lambda *_, **__: np.array([0.6, 0.2, 0.2]))
    monkeypatch.setattr(min_norm, "MAX_STEPS_PER_CONSTRAINT", 0)
    cohort = cohort_of(TOY3, TOY3_EXAMPLES)
    step = FedMGDA().aggregate(cohort, None, LAYOUT)
    assert not step.report["trusted"]
    assert step.report["residual"] > 1e-6
    assert_allclose(step.direction, direction(FedMGDA(epsilon=0.0), cohort), rtol=1e-12)


def test_more_clients_than_coordinates_and_clients_that_are_alike() -> None:
    """The weights are not unique then, the direction is."""
    rows = np.repeat(TOY3, 7, axis=0)
    examples = [size for size in TOY3_EXAMPLES for _ in range(7)]
    step = direction(FedMGDA(epsilon=0.1 / 7), cohort_of(rows, examples))
    assert_allclose(step, direction(FedMGDA(), cohort_of(TOY3, TOY3_EXAMPLES)), **SOLVED)
    assert math.isfinite(step.sum())
