"""Where two methods must be the same method, they are so to the last bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from common.methods import FedAvg, FedPCD, FedPVR, Method, Scaffold
from server_app.state.server_state import ServerState
from tests.builders import (
    Federation,
    Quadratic,
    assert_same,
    begin,
    bowls,
    drawn,
    layout_of_size,
    play,
)

D = 30
LAYOUT = layout_of_size(D)
COHORTS = drawn(8, 4, 10)


def uneven(client: str) -> int:
    return 1 + 7 * int(client)


def run(
    method: Method[Any],
    problems: dict[str, Quadratic] | None = None,
    *,
    examples: Callable[[str], int] = uneven,
    server_lr: float = 1.0,
) -> list[ServerState[Any]]:
    start = begin(method, LAYOUT, np.linspace(-1, 1, D), np.float32)
    problems = problems or bowls(8, D)
    return play(
        method, start, LAYOUT, problems, COHORTS, examples=examples, server_lr=server_lr, steps=3
    )


def same_weights(one: list[ServerState[Any]], other: list[ServerState[Any]]) -> None:
    for ours, theirs in zip(one, other, strict=True):
        assert_same(ours.weights, theirs.weights)


@pytest.mark.parametrize("server_lr", [1.0, 0.3])
@pytest.mark.parametrize("tau", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("history", [0, 10])
def test_fedpcd_without_a_violated_constraint_is_fedavg(
    tau: float, history: int, server_lr: float
) -> None:
    """All clients pull to centres far away on the same side."""
    far = {name: Quadratic(bowl.a + 100, bowl.h / bowl.h) for name, bowl in bowls(8, D).items()}
    ours = run(FedPCD(tau=tau, history=history), far, server_lr=server_lr)
    same_weights(ours, run(FedAvg(), far, server_lr=server_lr))


def test_fedpcd_with_a_violated_constraint_is_not_fedavg() -> None:
    ours, theirs = run(FedPCD(tau=0.1)), run(FedAvg())
    assert not np.array_equal(ours[-1].weights, theirs[-1].weights)


def test_fedpvr_without_a_block_and_weighted_is_fedavg() -> None:
    same_weights(run(FedPVR.neutral()), run(FedAvg()))
    same_weights(run(FedPVR(block="", uniform=False)), run(FedAvg(uniform=False)))


def test_fedpvr_without_a_block_is_uniform_fedavg() -> None:
    same_weights(run(FedPVR(block="")), run(FedAvg(uniform=True)))


@pytest.mark.parametrize("fedavg", [FedAvg(), FedAvg(uniform=True)])
@pytest.mark.parametrize("fedpvr", [FedPVR(block=""), FedPVR(block="", uniform=False)])
@pytest.mark.parametrize("size", [1, 7, 600])
def test_equal_numbers_of_examples_make_all_weightings_equal(
    fedpvr: FedPVR, fedavg: FedAvg, size: int
) -> None:
    same_weights(run(fedpvr, examples=lambda _: size), run(fedavg, examples=lambda _: size))


def test_fedpvr_on_the_whole_model_is_scaffold() -> None:
    """With 4 of 8 clients a round, so that variates of several ages are used."""
    ours, theirs = run(FedPVR(block="*")), run(Scaffold())
    same_weights(ours, theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one.method, other.method)
    assert not np.array_equal(ours[-1].weights, run(FedPVR())[-1].weights)


@pytest.mark.usefixtures("flower_identity")
@pytest.mark.parametrize("method", [FedAvg(), FedPCD(tau=0.1), FedPVR(), Scaffold()])
def test_replies_in_another_order_give_the_same_bits(method: Method[Any]) -> None:
    usual, late = Federation(method), Federation(method)
    send = late._replies
    late._replies = lambda *args: send(*args)[::-1]  # type: ignore[method-assign]
    for number in (1, 2, 3):
        assert usual.train(number) == late.train(number)
        assert_same(usual.strategy.state, late.strategy.state)
        assert usual.strategy.record == late.strategy.record
        assert usual.evaluate(number) == late.evaluate(number)
