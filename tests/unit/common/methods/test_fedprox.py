"""FedProx holds clients near the model they received, and nothing else."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.methods import Ditto, FedDyn, FedProx, Method
from tests.builders import EXACT, QUAD2, Quadratic, begin, layout_of_size, local_steps, play

LAYOUT = layout_of_size(2)
ISO = {client: Quadratic(problem.a, np.ones(2)) for client, problem in QUAD2.items()}


@pytest.mark.parametrize(
    ("mu", "one", "two", "mean", "weighted"),
    [
        (0.0, (1.19, 0.81), (0.81, 1.57), (1.0, 1.19), (1.095, 1.0)),
        (0.01, (1.1899, 0.8101), (0.8101, 1.5697), (1.0, 1.1899), (1.09495, 1.0)),
        (1.0, (1.18, 0.82), (0.82, 1.54), (1.0, 1.18), (1.09, 1.0)),
    ],
)
def test_quad2_iso(
    mu: float,
    one: tuple[float, float],
    two: tuple[float, float],
    mean: tuple[float, float],
    weighted: tuple[float, float],
) -> None:
    """Clients' models after two steps, and both averages."""
    for client, expected in (("1", one), ("2", two)):
        weights, client_payload = local_steps(
            FedProx(mu=mu), {}, LAYOUT, np.ones(2), ISO[client].gradient
        )
        assert_allclose(weights, expected, **EXACT)
        assert client_payload == {}
    for method, expected in ((FedProx(mu=mu, uniform=True), mean), (FedProx(mu=mu), weighted)):
        start = begin(method, LAYOUT, (1, 1))
        sizes = {"1": 3, "2": 1}.__getitem__
        (state,) = play(method, start, LAYOUT, ISO, [["1", "2"]], examples=sizes)
        assert_allclose(state.weights, expected, **EXACT)


def test_the_first_step_is_the_same_for_every_mu() -> None:
    gradient = QUAD2["1"].gradient
    ends = [
        local_steps(FedProx(mu=mu), {}, LAYOUT, np.ones(2), gradient, steps=1)[0]
        for mu in (0.0, 0.1, 10.0)
    ]
    for end in ends:
        assert_array_equal(end, ends[0])


def test_the_larger_mu_the_nearer_a_client_stays() -> None:
    ways = [
        np.linalg.norm(
            local_steps(FedProx(mu=mu), {}, LAYOUT, np.ones(2), QUAD2["1"].gradient, steps=50)[0]
            - np.ones(2)
        )
        for mu in (0.0, 0.1, 1.0, 5.0)
    ]
    assert ways == sorted(ways, reverse=True)
    assert ways[-1] < ways[0] / 3


@pytest.mark.parametrize(
    ("method", "key"),
    [(FedProx(mu=21.0), "fedprox.mu"), (Ditto(lam=21.0), "ditto.lam"),
     (FedDyn(alpha=21.0), "feddyn.alpha")],
)  # fmt: skip
def test_a_pull_that_diverges_is_refused(method: Method[Any], key: str) -> None:
    quiet = {"momentum": 0.0, "weight_decay": 0.0}
    (said,) = method.config_problems(lr=0.1, **quiet)
    assert said.startswith(f"{key} * train.lr must be at most 2, not 21 * 0.1")
    assert list(method.config_problems(lr=0.09, **quiet)) == []
    ways = []
    for steps in (1, 9):
        flat = np.ones(2)
        rule = FedProx(mu=21.0)
        end, _ = local_steps(rule, {}, LAYOUT, flat, QUAD2["1"].gradient, steps=steps)
        ways.append(float(np.linalg.norm(end - flat)))
    assert ways[1] > ways[0]
