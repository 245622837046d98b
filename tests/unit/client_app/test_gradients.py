"""Full gradients of a client's loss, and what is told of them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn
from torch.nn.functional import cross_entropy

from client_app.gradients import full_gradient, gradient_metrics
from client_app.trainer import TrainingResult
from common.config_groups import TrainConfig
from common.data.image_batches import normalise
from common.models import Dropout
from common.wire.reply_metrics import GRADIENT, GRADIENT_ERROR, OWN_METRICS, SMOOTHNESS
from tests.builders import LR, QUAD2, pictures
from tests.unit.client_app.nets import Net, flat_of, run

DATA = pictures(50)
ALL = np.arange(len(DATA))
WHOLE = TrainConfig(batch_size=len(DATA))


def test_it_is_the_gradient_of_the_mean_loss_however_it_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flat, chosen = flat_of(Net()), ALL[5:40]
    images = normalise(torch.from_numpy(DATA.images[chosen]), DATA.mean, DATA.std)
    weights = list(flat.model.parameters())
    loss = cross_entropy(flat.model(images), torch.from_numpy(DATA.labels[chosen]))
    expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights)]).numpy()
    for batch in (512, 8):
        monkeypatch.setattr("client_app.evaluator.BATCH", batch)
        assert_allclose(full_gradient(flat, DATA, chosen), expected, rtol=1e-5, atol=1e-7)


def test_dropout_is_off_and_neither_weights_nor_statistics_change() -> None:
    middle = nn.Sequential(Dropout(0.5), nn.BatchNorm1d(16))
    flat = flat_of(Net(middle))
    weights, buffers = flat.copy_weights(), flat.copy_buffers()
    chance = torch.get_rng_state()
    assert_array_equal(full_gradient(flat, DATA, ALL), full_gradient(flat, DATA, ALL))
    assert_array_equal(flat.copy_weights(), weights)
    for name, buffer in flat.copy_buffers().items():
        assert_array_equal(buffer, buffers[name])
    assert torch.equal(torch.get_rng_state(), chance)


@pytest.mark.parametrize("batch_size", [8, 50])
def test_training_takes_the_same_steps_after_it(batch_size: int) -> None:
    plain, asked = flat_of(Net(Dropout(0.5))), flat_of(Net(Dropout(0.5)))
    full_gradient(asked, DATA, ALL)
    plan = TrainConfig(batch_size=batch_size, momentum=0.9)
    assert run(plain, DATA, plan) == run(asked, DATA, plan)
    assert_array_equal(plain.copy_weights(), asked.copy_weights())


def told(plan: TrainConfig, lr: float = 0.1) -> dict[str, float]:
    flat = flat_of(Net())
    received, first = flat.copy_weights(), full_gradient(flat, DATA, ALL)
    done = run(flat, DATA, plan, lr=lr)
    last = full_gradient(flat, DATA, ALL)
    return gradient_metrics(first, last, received, flat.copy_weights(), done)


def test_one_step_on_all_samples_is_the_full_gradient_and_several_are_not() -> None:
    one, many = told(WHOLE), told(TrainConfig(batch_size=8))
    assert one[GRADIENT_ERROR] < 1e-5 * one[GRADIENT]
    assert many[GRADIENT_ERROR] > 0.01 * many[GRADIENT]
    assert one[GRADIENT] == many[GRADIENT]


@pytest.mark.parametrize("lr", [0.01, 1.0])
def test_the_smoothness_seen_is_below_that_of_the_loss(lr: float) -> None:
    """The Hessian of softmax regression is at most half the inputs' second moment."""
    flat = normalise(torch.from_numpy(DATA.images), DATA.mean, DATA.std).flatten(1).numpy()
    inputs = np.column_stack([flat, np.ones(len(flat))])
    most = np.linalg.eigvalsh(inputs.T @ inputs / len(inputs)).max() / 2
    assert 0.01 * most < told(WHOLE, lr)[SMOOTHNESS] < most


def test_what_is_told_of_two_steps_on_a_quadratic() -> None:
    problem, start = QUAD2["1"], np.ones(2)
    end = start
    for _ in range(2):
        end = end - LR * problem.gradient(end)
    assert_allclose(end, [1.19, 0.64])
    done = TrainingResult(steps=2, lr_sum=2 * LR, examples=1, loss=0.0)
    metrics = gradient_metrics(problem.gradient(start), problem.gradient(end), start, end, done)
    assert metrics[GRADIENT] == pytest.approx(5**0.5)
    assert metrics[GRADIENT_ERROR] == pytest.approx(0.17**0.5)
    assert metrics[SMOOTHNESS] == pytest.approx(np.hypot(0.19, 0.72) / np.hypot(0.19, 0.36))
    assert metrics.keys() <= OWN_METRICS


def test_weights_that_did_not_move_show_no_smoothness() -> None:
    done = TrainingResult(steps=1, lr_sum=LR, examples=1, loss=0.0)
    metrics = gradient_metrics(np.zeros(2), np.zeros(2), np.ones(2), np.ones(2), done)
    assert metrics == {GRADIENT: 0.0, GRADIENT_ERROR: 0.0}
