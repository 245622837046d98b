"""A rule that asks for the full batch gets one step with the gradient of all samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn
from torch.nn.functional import cross_entropy

from client_app.trainer import TrainingResult
from common.config_groups import TrainConfig
from common.data.image_batches import normalise
from common.methods import FedLF, LocalRule
from common.models import Dropout
from tests.builders import pictures
from tests.unit.client_app.nets import PLAN, Net, flat_of, run

WHOLE = LocalRule(full_batch=True)


@pytest.mark.parametrize("count", [1, 5, 33, 80])
@pytest.mark.parametrize(
    "plan", [PLAN, TrainConfig(batch_size=32, epochs=5, drop_last=True, momentum=0.9)]
)
def test_it_is_one_step_along_the_exact_gradient(count: int, plan: TrainConfig) -> None:
    """Whatever batches, epochs and momentum the run has for others."""
    flat, data = flat_of(Net(nn.Linear(16, 16))), pictures(count)
    images = normalise(torch.from_numpy(data.images), data.mean, data.std)
    loss = cross_entropy(flat.model(images), torch.from_numpy(data.labels))
    loss.backward()
    gradient, before = flat.gradient.numpy().copy(), flat.copy_weights()
    done = run(flat, data, plan, WHOLE, lr=0.25)
    assert (done.steps, done.examples, done.lr_sum) == (1, count, 0.25)
    assert done.loss == pytest.approx(loss.item(), rel=1e-6)
    assert_allclose(before - flat.copy_weights(), 0.25 * gradient, rtol=0, atol=1e-6)


def test_that_is_how_fedlf_trains_when_it_is_as_released() -> None:
    ends = []
    for method in (FedLF(released=True), FedLF()):
        flat = flat_of(Net())
        done = run(flat, pictures(40), PLAN, method.local_rule({}, flat.layout))
        ends.append(done.steps)
    assert ends == [1, 5]


def test_a_client_without_samples_takes_no_step() -> None:
    flat = flat_of(Net())
    before = flat.copy_weights()
    assert run(flat, pictures(5), PLAN, WHOLE, count=0) == TrainingResult(0, 0.0, 0, 0.0)
    assert_array_equal(flat.copy_weights(), before)


def test_dropout_and_batch_statistics_are_as_in_training() -> None:
    still, dropped = flat_of(Net()), flat_of(Net(Dropout(0.5)))
    for flat in (still, dropped):
        run(flat, pictures(40), PLAN, WHOLE)
    assert not np.allclose(still.copy_weights(), dropped.copy_weights())
    normed = flat_of(Net(nn.BatchNorm1d(16)))
    before = normed.copy_buffers()["features.1.running_mean"]
    run(normed, pictures(40), replace(PLAN, batch_size=1), WHOLE)
    assert not np.array_equal(normed.copy_buffers()["features.1.running_mean"], before)
