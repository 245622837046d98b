"""Evaluation counts; it does not average, and it leaves the model as it was."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn
from torch.nn.functional import cross_entropy

from client_app import evaluator
from client_app.evaluator import EvaluationResult, evaluate
from common.data.image_batches import normalise
from common.models import Dropout, FlatModel, build
from tests.builders import pictures


def test_counts_are_those_of_one_pass_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    data, flat = pictures(50), FlatModel(build("mlp", (1, 4, 4), 3, seed=0))
    chosen = np.arange(3, 40)
    logits = flat.model(normalise(torch.from_numpy(data.images), data.mean, data.std))[chosen]
    labels = torch.from_numpy(data.labels[chosen])
    right = int((logits.argmax(1) == labels).sum())
    for batch in (1, 7, 512):
        monkeypatch.setattr(evaluator, "BATCH", batch)
        found = evaluate(flat, data, chosen)
        assert (found.examples, found.correct) == (37, right)
        exact = cross_entropy(logits, labels, reduction="sum").item()
        assert found.loss_sum == pytest.approx(exact, rel=1e-5)


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/246
def test_no_samples_are_no_error_and_no_nan() -> None:
    flat = FlatModel(build("mlp", (1, 4, 4), 3, seed=0))
    assert evaluate(flat, pictures(5), np.zeros(0, np.int64)) == EvaluationResult(0, 0, 0.0)


def test_dropout_is_off_and_statistics_are_not_updated() -> None:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), Dropout(0.9), nn.Linear(16, 3))
    flat, data = FlatModel(net), pictures(30)
    before = flat.copy_buffers()
    one, other = (evaluate(flat, data, np.arange(30)) for _ in range(2))
    assert one == other
    for name, value in flat.copy_buffers().items():
        assert_array_equal(value, before[name])
