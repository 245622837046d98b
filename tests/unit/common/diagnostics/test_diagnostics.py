"""Drift diversity, CKA and progress: the published numbers, and what holds for any values."""

from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from common.diagnostics import (
    Drift,
    centred_gram,
    cka_matrix,
    cka_of_features,
    cka_of_grams,
    cosines_with,
    drift_diversity,
    expected_occupancy,
    linear_cka,
    mean_of_pairs,
)
from common.layout import Layout, Tensor
from common.models import build, layout_of
from common.rng import stream
from tests.builders import EXACT, TOY3, compass, layout_of_size


def layout_of_layers(*sizes: int) -> Layout:
    """Layers "0", "1", ... of a weight and a bias of one number each, and a weight alone for 1."""
    tensors: list[Tensor] = []
    for k, size in enumerate(sizes):
        tensors.append(Tensor(f"{k}.weight", (max(size - 1, 1),)))
        if size > 1:
            tensors.append(Tensor(f"{k}.bias", (1,)))
    return Layout(tuple(tensors))


# ---------------------------------------------------------------- drift


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


# ---------------------------------------------------------------- linear CKA

X = np.array([[1.0, 0], [0, 1], [1, 1], [2, 0]])
Y = np.array([[1.0, 1], [0, 2], [1, 3], [3, 0]])
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


def features(inputs: int, width: int, seed: int = 0) -> Any:
    return stream(seed, "features", inputs, width).normal(size=(inputs, width)) + 3


def test_the_worked_example_of_cka_in_both_forms() -> None:
    assert cka_of_features(X, Y) == pytest.approx(0.857091230428, abs=1e-12)
    gram = cka_of_grams(centred_gram(X), centred_gram(Y))
    assert gram == pytest.approx(0.857091230428, abs=1e-12)
    assert linear_cka(X, X) == pytest.approx(1, abs=1e-12)
    assert linear_cka(X, 3 * X @ TURN + 5) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("p", "q"), [(3, 5), (20, 4), (40, 60), (20, 20)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_two_forms_of_cka_agree(p: int, q: int, dtype: Any) -> None:
    x, y = features(20, p).astype(dtype), features(20, q, seed=1).astype(dtype)
    y[:, : min(p, q)] += x[:, : min(p, q)]
    whole = cka_of_features(x, y)
    assert cka_of_grams(centred_gram(x), centred_gram(y)) == pytest.approx(whole, abs=1e-12)
    assert linear_cka(x, y) == pytest.approx(whole, abs=1e-12)
    assert linear_cka(y, x) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("width", [4, 30])
def test_cka_knows_no_rotation_scale_or_offset_but_which_input_is_which(width: int) -> None:
    x, y = features(12, width), features(12, width, seed=1)
    turn, _ = np.linalg.qr(features(width, width, seed=2))
    found = linear_cka(x, y)
    assert found is not None
    assert 0 <= found < 1
    assert linear_cka(7 * x @ turn - 2, y) == pytest.approx(found, abs=1e-12)
    order = stream(0, "order").permutation(12)
    assert linear_cka(x[order], y[order]) == pytest.approx(found, abs=1e-12)
    assert linear_cka(x[order], y) != pytest.approx(found, abs=1e-3)


def test_wide_features_are_taken_in_blocks_and_centred_before_they_are_multiplied() -> None:
    wide = (features(5, 40_000) + 1000).astype(np.float32)
    centred = wide - wide.astype(np.float64).mean(axis=0)
    assert_allclose(centred_gram(wide), centred @ centred.T, rtol=1e-9)


@pytest.mark.parametrize(
    "x",
    [np.full((7, 3), 0.1), np.full((7, 9), 0.1), np.full((4, 2), np.inf), X[:1]],
    ids=["constant", "constant and wide", "not finite", "one input"],
)
def test_cka_is_undefined_where_nothing_varies(x: Any) -> None:
    assert linear_cka(x, features(len(x), 3)) is None
    assert linear_cka(x, x) is None


def test_every_pair_of_clients_is_compared_and_the_mean_is_of_different_ones() -> None:
    grams = [centred_gram(x) for x in (X, Y, X @ TURN, np.ones((4, 2)))]
    matrix = cka_matrix(grams)
    assert matrix[0][1] == matrix[1][0] == pytest.approx(0.857091230428, abs=1e-12)
    assert matrix[0][0] == pytest.approx(1, abs=1e-12)
    assert matrix[3] == [None] * 4
    mean = (2 * 0.857091230428 + 1) / 3
    assert mean_of_pairs(matrix) == pytest.approx(mean, abs=1e-12)
    assert mean_of_pairs(cka_matrix(grams[:1])) is None
    assert mean_of_pairs(cka_matrix(grams[2:])) is None


# ---------------------------------------------------------------- progress and occupancy


def test_cosines_with_the_step_are_those_of_the_published_example() -> None:
    direction = np.array([0.095815188370763, 0.49814486519106])
    cosines = cosines_with(direction, list(compass(10, 45, 155)))
    assert_allclose(cosines, [0.35653474170784, 0.82793834021861, 0.24382601515855], **EXACT)
    assert cosines_with(direction, [np.zeros(2), 5 * direction]) == [None, pytest.approx(1)]
    assert cosines_with(np.zeros(2), [direction]) == [None]


@pytest.mark.parametrize(
    ("clients", "share", "window", "expected"),
    [(100, 0.1, 0, 10), (100, 0.1, 4, 40.951), (100, 0.1, 10, 68.618940),
     (100, 0.05, 10, 43.119991), (30, 0.1, 10, 20.585682), (7, 1.0, 3, 7)],
)  # fmt: skip
def test_expected_occupancy_is_the_published_one(
    clients: int, share: float, window: int, expected: float
) -> None:
    assert expected_occupancy(clients, share, window + 1) == pytest.approx(expected, abs=1e-6)
