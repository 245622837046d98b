"""Drift diversity: the published numbers, and what holds for any displacements."""

from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from common.diagnostics import Drift, drift_diversity
from common.layout import Layout, Tensor
from common.models import build, layout_of
from common.rng import stream
from tests.builders import EXACT, TOY3, layout_of_size


def layout_of_layers(*sizes: int) -> Layout:
    """Layers "0", "1", ... of a weight and a bias of one number each, and a weight alone for 1."""
    tensors: list[Tensor] = []
    for k, size in enumerate(sizes):
        tensors.append(Tensor(f"{k}.weight", (max(size - 1, 1),)))
        if size > 1:
            tensors.append(Tensor(f"{k}.bias", (1,)))
    return Layout(tuple(tensors))


def drift(rows: Any, *sizes: int) -> Drift:
    vectors = list(np.asarray(rows, dtype=np.float64))
    return drift_diversity(vectors, layout_of_layers(*(sizes or (len(vectors[0]),))))


def moves(clients: int, size: int, seed: int = 0) -> Any:
    return stream(seed, "moves", clients, size).normal(size=(clients, size)).astype(np.float32)


def test_the_worked_example_of_two_clients() -> None:
    found = drift([[1, 0, 1], [0, 1, 1]], 2, 1)
    assert found.whole == pytest.approx(2 / 3, abs=1e-12)
    assert found.layers == {"0": 1.0, "1": 0.5}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1, 2]] * 2, 0.5),
        ([[0.1, -3, 7]] * 10, 0.1),
        (np.eye(4), 1.0),
        ([[1, 2], [-1, -2]], inf),
        ([[0, 0], [0, 0]], None),
        (TOY3, 0.769230769231),
    ],
    ids=["two identical", "ten identical", "orthonormal", "opposite", "nobody moved", "TOY3"],
)
def test_published_and_extreme_cases(rows: Any, expected: float | None) -> None:
    found = drift(rows).whole
    assert found == expected or found == pytest.approx(expected, abs=EXACT["atol"])


def test_a_layer_that_cancels_does_not_make_the_whole_infinite() -> None:
    found = drift([[1, 2, 1, 1], [-1, -2, 1, 1]], 2, 2)
    assert found.layers == {"0": inf, "1": 0.5}
    assert found.whole == pytest.approx(14 / 8)


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_it_is_never_below_one_over_m_and_knows_no_scale_sign_or_order(clients: int) -> None:
    rows = moves(clients, 40_000)
    layout = layout_of_size(40_000)
    found = drift_diversity(list(rows), layout)
    assert found.whole is not None
    assert found.whole >= 1 / clients - 1e-12
    for other in (-8.0 * rows, rows[::-1]):
        again = drift_diversity(list(other), layout)
        assert again.whole == pytest.approx(found.whole, rel=1e-12)
        assert again.layers == pytest.approx(found.layers, rel=1e-12)


def test_sums_over_blocks_are_the_plain_float64_sums() -> None:
    rows = moves(3, 40_000) + 5
    wide = rows.astype(np.float64)
    expected = (wide**2).sum() / (wide.sum(axis=0) ** 2).sum()
    found = drift_diversity(list(rows), layout_of_size(40_000))
    assert_allclose(found.whole, expected, rtol=1e-12)


def test_layers_are_the_models_modules_with_normalisations_apart() -> None:
    layout = layout_of(build("resnet8", (3, 8, 8), 4, seed=0))
    found = drift_diversity(list(moves(2, layout.size)), layout)
    assert list(found.layers) == layout.modules
    assert {"features.0", "features.1", "classifier"} < set(found.layers)
