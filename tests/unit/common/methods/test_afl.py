"""AFL raises the weights of clients with large losses, by their names and not their places."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.geometry import project_onto_simplex
from common.methods import AFL, FedAvg
from common.methods.afl import MixtureWeights
from common.rng import stream
from common.types import Vector
from server_app.run_dir.checkpoint import load_newest, save
from server_app.state.server_state import ServerState, evaluated_weights, next_state
from tests.builders import (
    EXACT,
    TOY3,
    TOY3_EXAMPLES,
    TOY3_LOSSES,
    arrays_in,
    assert_same,
    begin,
    bowls,
    cohort_of,
    drawn,
    layout_of_size,
    play,
)

LAYOUT = layout_of_size(2)


def toy3(method: AFL, rounds: int, server_lr: float = 1.0) -> list[ServerState[MixtureWeights]]:
    """The same displacements and losses in every round."""
    state, states = begin(method, LAYOUT, (1, 1)), []
    for number in range(1, rounds + 1):
        cohort = cohort_of(TOY3, TOY3_EXAMPLES, losses=TOY3_LOSSES, clients=3, round=number)
        state, _ = next_state(state, cohort, method, LAYOUT, server_lr)
        states.append(state)
    return states


def lambdas(state: ServerState[MixtureWeights]) -> list[float]:
    return list(state.method.lambdas.values())


def test_toy3() -> None:
    first, second, third = toy3(AFL(), 3)
    assert_allclose(first.weights, (0.966666666667, 0.833333333333), **EXACT)
    assert_allclose(lambdas(first), (0.266666666667, 0.316666666667, 0.416666666667), **EXACT)
    assert_allclose(second.weights, (0.965, 0.67), **EXACT)
    assert_allclose(lambdas(second), (0.2, 0.3, 0.5), **EXACT)
    assert_allclose(lambdas(third), (0.133333333333, 0.283333333333, 0.583333333333), **EXACT)


@pytest.mark.parametrize("losses", [TOY3_LOSSES, (1e3, 0.0, 1e9), (1.0, 1.0, 1.7e308)])
@pytest.mark.parametrize("eta_lambda", [1.0, 1e6])
def test_with_a_huge_rise_the_worst_client_is_all_that_counts(
    losses: Sequence[float], eta_lambda: float
) -> None:
    method = AFL(eta_lambda=eta_lambda)
    step = method.aggregate(cohort_of(TOY3, losses=losses, clients=3), MixtureWeights(), LAYOUT)
    assert_allclose(list(step.state.lambdas.values()), (0, 0, 1), **EXACT)


def test_losses_beyond_all_sense_are_equally_bad() -> None:
    method = AFL(eta_lambda=1e300)
    cohort = cohort_of(TOY3, losses=(1e305, 0.0, 1.7e308), clients=3)
    after = method.aggregate(cohort, MixtureWeights(), LAYOUT).state
    assert_array_equal(list(after.lambdas.values()), (0.5, 0, 0.5))


def test_toy3_with_some_of_the_clients() -> None:
    cohort = cohort_of(TOY3[[0, 2]], names=["1", "3"], losses=(0.5, 2.0), clients=3)
    step = AFL().aggregate(cohort, MixtureWeights(), LAYOUT)
    assert step.state.lambdas == pytest.approx({"1": 0.3, "3": 0.45})
    assert step.state.unseen == pytest.approx(0.25)
    assert_allclose(step.direction, TOY3[[0, 2]].mean(axis=0), **EXACT)
    assert step.report["weights"] == {"1": 0.5, "3": 0.5}


def dense(
    cohorts: Sequence[Sequence[str]], losses: Sequence[Sequence[float]], clients: int
) -> list[tuple[Vector, Vector]]:
    """The card's rule with all N weights in one vector; shares of the cohort and weights after."""
    weights, rounds = np.full(clients, 1 / clients), []
    for cohort, told in zip(cohorts, losses, strict=True):
        places = [int(name) for name in cohort]
        held = weights[places]
        shares = held / held.sum() if held.sum() else np.full(len(held), 1 / len(held))
        raised = weights.copy()
        raised[places] += 0.1 * np.array(told)
        weights = project_onto_simplex(raised)
        rounds.append((shares, weights))
    return rounds


@pytest.mark.parametrize("seed", range(5))
def test_weights_belong_to_names_however_few_take_part(seed: int) -> None:
    """Unseen clients are kept as one number; it is the same as keeping each."""
    clients, cohorts = 12, [sorted(c, key=int) for c in drawn(12, 3, 15, seed=seed)]
    losses = stream(seed, "losses").exponential(size=(15, 3))
    state = MixtureWeights()
    expected = dense(cohorts, losses.tolist(), clients)
    for number, cohort in enumerate(cohorts):
        replies = cohort_of(
            np.eye(3), names=cohort, losses=losses[number].tolist(), clients=clients
        )
        step = AFL().aggregate(replies, state, LAYOUT)
        state, (shares, weights) = step.state, expected[number]
        assert_allclose(step.direction, shares, **EXACT)
        for client, weight in state.lambdas.items():
            assert weight == pytest.approx(weights[int(client)], abs=1e-12)
        others = [weights[k] for k in range(clients) if str(k) not in state.lambdas]
        assert state.unseen == pytest.approx(sum(others), abs=1e-12)


def test_a_cohort_without_any_weight_counts_equally() -> None:
    nothing = MixtureWeights({"1": 0.0, "2": 0.0, "3": 0.0, "4": 1.0}, unseen=0.0)
    step = AFL().aggregate(cohort_of(TOY3, losses=TOY3_LOSSES, clients=4), nothing, LAYOUT)
    assert_allclose(step.direction, TOY3.mean(axis=0), **EXACT)
    assert step.report["lambda_cohort"] == 0


def test_a_client_without_weight_comes_back_by_its_losses() -> None:
    before = MixtureWeights({"1": 0.0, "2": 1.0}, unseen=0.0)
    for losses, weight in (((1.0, 3.0), 0.0), ((3.0, 1.0), 0.1), ((11.0, 0.0), 0.55)):
        cohort = cohort_of(TOY3[:2], losses=losses, clients=2)
        after = AFL().aggregate(cohort, before, LAYOUT).state
        assert after.lambdas["1"] == pytest.approx(weight)  # eta_lambda (F_1 - F_2) / 2


@pytest.mark.parametrize("clients", [3, 4, 5, 40, 2000])
def test_a_federation_that_grows_or_shrinks_keeps_a_mixture(clients: int) -> None:
    """Weights stay at least 0 and add up to 1; the unseen clients share what is theirs."""
    first = AFL().aggregate(
        cohort_of(TOY3, losses=TOY3_LOSSES, clients=9), MixtureWeights(), LAYOUT
    )
    for names in (["1", "2", "3"], ["2", "8"], ["7", "8", "9"]):
        rows, losses = TOY3[: len(names)], [2.0, 0.1, 0.3][: len(names)]
        cohort = cohort_of(rows, names=names, losses=losses, clients=clients, round=2)
        after = AFL().aggregate(cohort, first.state, LAYOUT).state
        met = first.state.with_clients(names, clients)
        shared_out = [*met.lambdas.values(), met.unseen]
        assert min(shared_out) >= 0
        assert sum(shared_out) <= 1 + 1e-12
        held = [*after.lambdas.values(), after.unseen]
        assert min(held) >= 0
        assert sum(held) == pytest.approx(1, abs=1e-12)
        if clients <= len(after.lambdas):
            assert after.unseen == 0


def test_without_rises_it_is_the_plain_mean() -> None:
    layout, problems, cohorts = layout_of_size(6), bowls(7, 6), drawn(7, 3, 10)
    ours, theirs = (
        play(method, begin(method, layout, np.ones(6)), layout, problems, cohorts)
        for method in (AFL(eta_lambda=0.0), FedAvg(uniform=True))
    )
    assert_allclose(ours[-1].weights, theirs[-1].weights, rtol=1e-12)


# ---------------------------------------------------------------- the mean iterate


def test_toy3s_mean_iterate() -> None:
    method = AFL(average=True)
    first, second = toy3(method, 2)
    assert_allclose(evaluated_weights(first, method, 1.0), first.weights, **EXACT)
    assert_allclose(second.weights, (0.965, 0.67), **EXACT)
    mean = (0.965833333333, 0.751666666667)
    assert_allclose(evaluated_weights(second, method, 1.0), mean, **EXACT)


@pytest.mark.parametrize("server_lr", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_evaluated_is_the_mean_of_all_iterates(server_lr: float, dtype: Any) -> None:
    layout, problems, cohorts = layout_of_size(6), bowls(7, 6), drawn(7, 3, 40)
    method = AFL(average=True)
    start = begin(method, layout, np.full(6, 2.0), dtype)
    assert evaluated_weights(start, method, server_lr) is start.weights
    states = play(method, start, layout, problems, cohorts, server_lr=server_lr)
    plain = play(AFL(), start, layout, problems, cohorts, server_lr=server_lr)
    for count, state in enumerate(states, start=1):
        shown = evaluated_weights(state, method, server_lr)
        assert shown.dtype == dtype
        mean = np.mean([s.weights.astype(np.float64) for s in states[:count]], axis=0)
        assert_allclose(shown, mean, rtol=0, atol=1e-12 if dtype is np.float64 else 1e-5)
        assert_array_equal(state.weights, plain[count - 1].weights)


def test_the_mean_costs_one_model_of_memory_and_nothing_when_not_asked_for() -> None:
    for method in (AFL(), AFL(average=True)):
        held = sum(array.size for array in arrays_in(toy3(method, 3)[-1].method))
        assert held == method.state_floats(LAYOUT, 3, 3)
    assert evaluated_weights(state := toy3(AFL(), 2)[-1], AFL(), 1.0) is state.weights


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_the_mean_comes_back_from_a_checkpoint(rounds: int, tmp_path: Path) -> None:
    method = AFL(average=True)
    state = [begin(method, LAYOUT, (1, 1)), *toy3(method, rounds)][-1]
    save(tmp_path, state, fingerprint="f", keep=1)
    restored, warnings = load_newest(tmp_path, method, LAYOUT, fingerprint="f")
    assert warnings == []
    assert_same(restored, state)
