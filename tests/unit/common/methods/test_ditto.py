"""Ditto: FedAvg for all, and a model of its own for each client."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from client_app.trainer import _Optimiser
from common.config_groups import TrainConfig
from common.methods import Ditto, FedAvg, LocalRule
from common.models import FlatModel
from common.types import Vector
from tests.builders import EXACT, QUAD2, Quadratic, assert_same, begin, layout_of_size, play

ISO = {client: Quadratic(problem.a, np.ones(2)) for client, problem in QUAD2.items()}
RECEIVED = np.ones(2)


def test_the_model_for_all_is_fedavgs_whatever_lambda_is() -> None:
    layout = layout_of_size(2)
    for uniform in (False, True):
        ours, theirs = (
            play(rule, begin(rule, layout, (1, 1)), layout, ISO, [["1", "2"]] * 3, examples=int)
            for rule in (Ditto(lam=5.0, uniform=uniform), FedAvg(uniform=uniform))
        )
        assert_same([state.weights for state in ours], [state.weights for state in theirs])
    (state,) = play(Ditto(), begin(Ditto(), layout, (1, 1)), layout, ISO, [["1", "2"]])
    assert_allclose(state.weights, (1.0, 1.19), **EXACT)


def own_model(problem: Quadratic, lam: float, steps: int, start: Any = (0.0, 0.0)) -> Vector:
    """Steps of the trainer's own optimiser with exact gradients, from `start`."""
    flat = FlatModel(torch.nn.Linear(2, 1, bias=False, dtype=torch.float64))
    flat.load(np.array(start), {})
    rule = LocalRule(proximal_weight=lam, anchor=RECEIVED)
    optimiser = _Optimiser(flat, TrainConfig(), rule)
    for _ in range(steps):
        flat.gradient.copy_(torch.from_numpy(problem.gradient(flat.copy_weights())))
        optimiser.step(0.1)
    return flat.copy_weights()


@pytest.mark.parametrize(
    ("lam", "one", "two"),
    [(1.0, (0.54, 0.18), (0.18, 0.9)), (0.0, (0.38, 0.0), (0.0, 0.76))],
)
def test_quad2_iso(lam: float, one: tuple[float, float], two: tuple[float, float]) -> None:
    assert_allclose(own_model(ISO["1"], lam, 2), one, **EXACT)
    assert_allclose(own_model(ISO["2"], lam, 2), two, **EXACT)


def test_an_own_model_ends_between_the_clients_optimum_and_the_model_for_all() -> None:
    for problem, end in ((ISO["1"], (1.5, 0.5)), (ISO["2"], (0.5, 2.5))):
        assert_allclose(own_model(problem, 1.0, 500), end, **EXACT)
        near = own_model(problem, 15.0, 500) - RECEIVED
        assert np.linalg.norm(near) < np.linalg.norm(np.array(end) - RECEIVED) / 7


def test_where_the_steps_begin_does_not_move_the_anchor() -> None:
    """The anchor is the model received, and not where the own model begins."""
    ends = [own_model(ISO["1"], 1.0, 500, start) for start in ((0, 0), (1, 1), (-3, 8))]
    for end in ends[1:]:
        assert_allclose(end, ends[0], **EXACT)


def test_only_ditto_gives_clients_a_model_of_their_own() -> None:
    assert Ditto().personal_proximal_weight() == 0.1
    assert Ditto(lam=0.0).personal_proximal_weight() == 0.0
    assert FedAvg().personal_proximal_weight() is None
    assert Ditto.neutral() == Ditto()
