"""The attackers of the benchmark do what its table says."""

import numpy as np
import torch
from numpy.testing import assert_allclose, assert_array_equal

from bench.attacks import CLASSES, SHAPE, reversed_outputs, tolerated
from common.models import FlatModel, build
from common.rng import stream


def test_reversed_outputs_exchange_the_scores_of_y_and_9_minus_y() -> None:
    """So a training with them follows the gradient of the flipped labels."""
    model = FlatModel(build("mlp", SHAPE, CLASSES, seed=1))
    images = torch.from_numpy(stream(1, "images").normal(size=(5, *SHAPE)).astype(np.float32))
    weights = model.copy_weights()
    with torch.no_grad():
        before = model.outputs(images).numpy().copy()
        model.load(reversed_outputs(weights, model.layout), {})
        after = model.outputs(images).numpy()
    assert_allclose(after, before[:, ::-1], rtol=1e-5, atol=1e-6)
    assert_array_equal(
        reversed_outputs(reversed_outputs(weights, model.layout), model.layout), weights
    )


def test_tolerated_stops_at_the_first_number_that_halves_the_accuracy() -> None:
    assert tolerated([0.8, 0.7, 0.4, 0.39, 0.5, 0.1]) == 2
    assert tolerated([0.8, 0.1]) == 0
    assert tolerated([0.8, 0.8, 0.8]) == 2
