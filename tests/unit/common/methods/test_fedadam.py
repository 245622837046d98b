"""FedAdam is Adam on the server, without bias correction and with v = tau^2 at the start."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import ConfigError
from common.methods import FedAdam
from common.methods.fedadam import Moments
from common.rng import stream
from tests.builders import cohort_of, layout_of_size

LAYOUT = layout_of_size(2)
HALF = FedAdam(eta=1.0, beta1=0.5, beta2=0.5, tau=1.0)


def test_two_rounds_give_the_numbers_of_a_calculation_by_hand() -> None:
    """Round 1, displacement 1: m = 0.5, v = 1, step 0.5 / 2. Round 2, displacement -1: m = -0.25.

    The second coordinate moves by sqrt(7) in round 1: v = 0.5 + 3.5 = 4, step sqrt(7) / 2 / 3.
    """
    first = HALF.aggregate(cohort_of([[1.0, np.sqrt(7)]]), HALF.init(LAYOUT), LAYOUT)
    assert_allclose(first.state.first, [0.5, np.sqrt(7) / 2])
    assert_allclose(first.state.second, [1.0, 4.0])
    assert_allclose(first.direction, [0.25, np.sqrt(7) / 6])
    second = HALF.aggregate(cohort_of([[-1.0, 0.0]], round=2), first.state, LAYOUT)
    assert_allclose(second.state.second, [1.0, 2.0])
    assert_allclose(second.direction, [-0.125, np.sqrt(7) / 4 / (np.sqrt(2) + 1)])


def test_without_memory_a_step_is_the_displacement_over_its_size_plus_tau() -> None:
    method = FedAdam(eta=2.0, beta1=0.0, beta2=0.0, tau=1.0)
    step = method.aggregate(cohort_of([[3.0, -1.0]]), method.init(LAYOUT), LAYOUT)
    assert_allclose(step.direction, [2 * 3 / 4, -2 * 1 / 2])


def test_steps_are_those_of_torch_adam_without_its_bias_correction() -> None:
    """Torch's step divides by 1 - beta1^t and sqrt(1 - beta2^t); its lr and eps undo that here."""
    method = FedAdam(eta=0.3, beta1=0.9, beta2=0.99, tau=0.01)
    weights = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weights], betas=(method.beta1, method.beta2))
    adam.state[weights] = {
        "step": torch.tensor(0.0),
        "exp_avg": torch.zeros_like(weights),
        "exp_avg_sq": torch.full_like(weights, method.tau**2),
    }
    layout, ours = layout_of_size(40), np.zeros(40)
    state = method.init(layout)
    for number, rows in enumerate(stream(1, "adam").normal(size=(12, 3, 40)), start=1):
        step = method.aggregate(cohort_of(rows, round=number), state, layout)
        ours, state = ours - step.direction, step.state
        root = np.sqrt(1 - method.beta2**number)
        adam.param_groups[0]["lr"] = method.eta * (1 - method.beta1**number) / root
        adam.param_groups[0]["eps"] = method.tau / root
        weights.grad = torch.from_numpy(rows.mean(axis=0))
        adam.step()
        assert_allclose(ours, weights.detach().numpy(), rtol=1e-9)
        assert_allclose(state.second, adam.state[weights]["exp_avg_sq"].numpy(), rtol=1e-12)


@pytest.mark.parametrize(("uniform", "mean"), [(False, 3.25), (True, 2.5)])
def test_the_gradient_is_the_mean_by_examples_or_the_plain_one(uniform: bool, mean: float) -> None:
    method = FedAdam(beta1=0.0, uniform=uniform)
    layout = layout_of_size(1)
    step = method.aggregate(cohort_of([[1.0], [4.0]], (1, 3)), method.init(layout), layout)
    assert_allclose(step.state.first, [mean])


def test_a_coordinate_that_never_moves_makes_no_step_and_keeps_its_moments_decaying() -> None:
    start = Moments(np.zeros(2), np.array([1e-6, 4.0]))
    step = FedAdam().aggregate(cohort_of(np.zeros((2, 2))), start, LAYOUT)
    assert_array_equal(step.direction, np.zeros(2))
    assert_allclose(step.state.second, 0.99 * start.second)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_displacements_whose_square_float32_cannot_hold_give_a_finite_step(size: float) -> None:
    rows = np.full((2, 2), size, np.float32)
    step = FedAdam().aggregate(cohort_of(rows), FedAdam().init(LAYOUT), LAYOUT)
    assert step.direction.dtype == np.float32
    assert step.state.first.dtype == np.float32
    assert np.isfinite(step.direction).all()
    assert (step.direction > 0).all()


@pytest.mark.parametrize("setting", [{"eta": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        FedAdam(**setting)
