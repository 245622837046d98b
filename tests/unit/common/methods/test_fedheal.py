"""FedHEAL: the card's numbers, the rule written out with running means, and every edge."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.linalg import norm
from numpy.testing import assert_allclose, assert_array_equal

from common.client_vectors import ClientVectors
from common.errors import ConfigError
from common.layout import Layout, Tensor
from common.methods import FedAvg, FedHEAL
from common.methods import fedheal as module
from common.methods.fedheal import SignCounts
from common.rng import stream
from common.types import Step, Vector
from server_app.round.sampling import sample_clients
from server_app.state.server_state import ServerState, next_state
from tests.builders import EXACT, cohort_of, layout_of_size

ONE = Layout((Tensor("w", (2,)),))  # a single tensor of two entries
DELTAS = np.array(
    [[[0.3, 0.4], [-0.1, 0.2]], [[0.3, -0.4], [-0.2, 0.1]], [[0.1, -0.2], [0.2, 0.2]]]
)


def rounds(method: FedHEAL, *deltas: Any, layout: Layout = ONE) -> list[Step[SignCounts]]:
    """One step after another of the same clients, without moving the model."""
    state, steps = SignCounts(), []
    for number, rows in enumerate(deltas, start=1):
        steps.append(method.aggregate(cohort_of(rows, round=number), state, layout))
        state = steps[-1].state
    return steps


def test_the_worked_example() -> None:
    expected = [
        ((0.554566573036, 0.445433426964), (-0.121826629214, -0.310913314607)),
        ((0.574219965858, 0.425780034142), (-0.208936612143, -0.410913314607)),
        ((0.573499881448, 0.426500118552), (-0.308936612143, -0.381513362028)),
    ]
    state: ServerState[SignCounts] = ServerState(0, np.zeros(2), {}, SignCounts())
    for number, (weights, theta) in enumerate(expected, start=1):
        cohort = cohort_of(DELTAS[number - 1], round=number)
        state, step = next_state(state, cohort, FedHEAL(), ONE, 1.0)
        assert_allclose(list(step.report["weights"].values()), weights, **EXACT)
        assert_allclose(state.weights, theta, **EXACT)
        if number == 1:
            trends = state.method.momentum.trends
            assert trends == pytest.approx({"1": 0.2763932023, "2": 0.1236067977}, abs=1e-9)
    assert state.method.rounds == {"1": 3, "2": 3}
    assert_array_equal(state.method.positive.get("1"), (3, 1))
    assert_array_equal(state.method.positive.get("2"), (1, 3))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("threshold", "beta"), [(0.31, 0.4), (0.0, 0.1), (0.56, 0.9)])
def test_counts_say_the_same_as_running_means(seed: int, threshold: float, beta: float) -> None:
    """The card's steps 1 to 6 on matrices; three of seven clients take part in each round.

    No share of up to 20 rounds is equal to a threshold, where running means err.
    """
    method, state, layout = (
        FedHEAL(threshold=threshold, beta=beta),
        SignCounts(),
        layout_of_size(9),
    )
    r: dict[str, Vector] = {}
    k: dict[str, int] = {}
    p: dict[str, float] = {}
    dp: dict[str, float] = {}
    dropped = 0
    for number in range(1, 21):
        names = sample_clients([str(c) for c in range(7)], 3, seed=seed, round=number)
        cohort = cohort_of(
            stream(seed, "rows", number).normal(size=(3, 9)) + 0.3, names=names, round=number
        )
        step = method.aggregate(cohort, state, layout)
        state = step.state

        clients = [update.client for update in cohort.updates]
        rows = np.stack([update.delta for update in cohort.updates])
        masks = np.ones_like(rows)
        for i, c in enumerate(clients):
            s = (rows[i] >= 0).astype(float)
            if c in r:
                masks[i] = np.where(rows[i] >= 0, r[c], 1 - r[c]) > threshold
            r[c] = (r[c] * k[c] + s) / (k[c] + 1) if c in r else s
            k[c] = k.get(c, 0) + 1
        v = masks * rows
        far = [sum(norm(row[span]) for span in layout.spans.values()) for row in v]
        for c, one in zip(clients, far, strict=True):
            dp[c] = (1 - beta) * dp.get(c, 0.0) + beta * one / sum(far)
            p[c] = p.get(c, 1 / 3) + dp[c]
        w = np.array([p[c] for c in clients]) / sum(p[c] for c in clients)
        weight = w @ masks
        expected = np.divide(w @ v, weight, out=np.zeros(9), where=weight > 0)

        assert_allclose(step.direction, expected, rtol=1e-9, atol=1e-12)
        assert_allclose(list(step.report["weights"].values()), w, rtol=1e-9)
        assert list(step.report["counted"].values()) == masks.mean(axis=1).tolist()
        dropped += int((masks == 0).sum())
    assert dropped > 0
    for c in r:
        assert_allclose(np.asarray(state.positive.get(c)) / state.rounds[c], r[c], rtol=1e-12)


# ---------------------------------------------------------------- what counts


def test_in_the_second_round_any_other_sign_is_dropped_and_zero_is_positive() -> None:
    first, second = [[1.0, -1.0, 0.0, 0.0]], [[-1.0, -1.0, 2.0, -2.0]]
    _, step = rounds(FedHEAL(), first, second, layout=layout_of_size(4))
    assert_array_equal(step.direction, (0, -1, 2, 0))
    assert step.report["counted"] == {"1": 0.5}
    _, again = rounds(FedHEAL(), [[1.0, 1.0]], [[0.0, 0.0]])
    assert again.report["counted"] == {"1": 1.0}
    assert_array_equal(again.state.positive.get("1"), (2, 2))


@pytest.mark.parametrize(("positive", "counts"), [(2, False), (3, False), (4, True)])
def test_a_share_equal_to_the_threshold_is_not_enough(positive: int, counts: bool) -> None:
    """Three rounds of ten are 0.3, which a running mean of floats misses."""
    signs = [1.0] * positive + [-1.0] * (10 - positive)
    *_, step = rounds(FedHEAL(), *([[s, 1.0]] for s in [*signs, 1.0]))
    assert step.direction[0] == (1.0 if counts else 0.0)
    *_, step = rounds(FedHEAL(), *([[-s, 1.0]] for s in [*signs, 1.0]))
    assert step.direction[0] == (-1.0 if counts else 0.0)


def test_what_a_client_dropped_counts_for_its_past_all_the_same() -> None:
    *_, step = rounds(FedHEAL(), *([[s, 1.0]] for s in (1.0, -1.0, -1.0)))
    assert step.direction[0] == -1.0  # one of two rounds agrees by now


def test_absent_clients_keep_what_they_have_and_new_ones_begin() -> None:
    state = rounds(FedHEAL(), DELTAS[0])[-1].state
    cohort = cohort_of([[-1.0, -1.0], [0.3, 0.4]], names=["2", "3"], round=2)
    after = FedHEAL().aggregate(cohort, state, ONE).state
    assert after.momentum.weights["1"] == state.momentum.weights["1"]
    assert after.momentum.trends["1"] == state.momentum.trends["1"]
    assert after.rounds == {"1": 1, "2": 2, "3": 1}
    assert after.positive.entries["1"].round == 1
    # client 2's first entry agrees with its past, its second does not
    far = {"2": 1.0, "3": 0.5}
    assert after.momentum.weights["3"] == pytest.approx(0.5 + 0.4 * far["3"] / 1.5)


def test_the_length_that_weighs_a_client_is_a_sum_over_tensors() -> None:
    rows = [[3.0, 0.0, 4.0], [0.0, 0.0, 7.0]]  # 3 + 4 and 7, were it not for the tensors 5 and 7
    (step,) = rounds(FedHEAL(), rows, layout=Layout((Tensor("a", (2,)), Tensor("b", (1,)))))
    assert step.report["weights"] == pytest.approx({"1": 0.5, "2": 0.5})


def test_a_coordinate_is_averaged_over_those_for_whom_it_counts() -> None:
    first, second = [[1.0, 1.0], [1.0, 1.0]], [[-4.0, 1.0], [2.0, 3.0]]
    _, step = rounds(FedHEAL(beta=0.0), first, second)
    assert_allclose(step.direction, (2, 2), rtol=1e-15)


# ---------------------------------------------------------------- edges


def test_with_nothing_to_weigh_or_to_drop_it_is_the_uniform_mean() -> None:
    rows = stream(0, "rows").normal(size=(4, 9))
    (step,) = rounds(FedHEAL(beta=0.0), rows, layout=layout_of_size(9))
    plain = FedAvg(uniform=True).aggregate(cohort_of(rows), None, ONE)
    assert_allclose(step.direction, plain.direction, rtol=1e-12)


@pytest.mark.parametrize("second", [[[0.0, 0.0], [0.0, 0.0]], [[-1.0, -1.0], [-1.0, -1.0]]])
def test_when_nothing_counts_there_is_no_step_and_the_weights_stay(second: Any) -> None:
    first, step = rounds(FedHEAL(), [[1.0, 2.0], [1.0, 1.0]], second)
    assert_array_equal(step.direction, (0, 0))
    assert step.state.momentum == first.state.momentum
    assert step.state.rounds == {"1": 2, "2": 2}


def test_in_a_first_round_without_updates_all_weigh_the_same() -> None:
    (step,) = rounds(FedHEAL(), np.zeros((2, 2)))
    assert step.report["weights"] == {"1": 0.5, "2": 0.5}


def test_counts_end_where_they_no_longer_fit() -> None:
    """A coordinate that was positive 65,535 times must not start again at 0."""
    most = module.MAX_ROUNDS
    counts = ClientVectors().put(1, {"1": np.array([most, 5], np.uint16)})
    state = replace(SignCounts(), positive=counts, rounds={"1": most})
    step = FedHEAL().aggregate(cohort_of([[1.0, -1.0]], round=2), state, ONE)
    assert_array_equal(step.direction, (1, -1))
    assert_array_equal(step.state.positive.get("1"), (most, 5))
    assert step.state.rounds == {"1": most}
    before = replace(state, rounds={"1": most - 1})
    before = replace(
        before, positive=ClientVectors().put(1, {"1": np.array([most - 1, 5], np.uint16)})
    )
    after = FedHEAL().aggregate(cohort_of([[1.0, 1.0]], round=2), before, ONE).state
    assert_array_equal(after.positive.get("1"), (most, 6))
    nobody = FedHEAL(threshold=1.0).aggregate(cohort_of([[1.0, 1.0]], round=2), state, ONE)
    assert_array_equal(nobody.direction, (0, 0))


def test_float32_updates_get_a_float32_step_close_to_the_float64_one() -> None:
    layout = layout_of_size(5000)
    rows = stream(4, "rows").normal(size=(3, 6, 5000)).astype(np.float32)
    step = rounds(FedHEAL(), *rows, layout=layout)[-1]
    exact = rounds(FedHEAL(), *rows.astype(np.float64), layout=layout)[-1]
    assert step.direction.dtype == np.float32
    assert_allclose(step.direction, exact.direction, rtol=1e-5, atol=1e-6)


def test_the_memory_that_is_announced_is_reached() -> None:
    layout = layout_of_size(50)
    state = rounds(FedHEAL(), np.ones((4, 50), np.float32), layout=layout)[-1].state
    assert state.positive.nbytes == 4 * FedHEAL().state_floats(layout, 4, 4)


@pytest.mark.parametrize("setting", [{"threshold": -0.1}, {"threshold": 1.1}, {"beta": 2.0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        FedHEAL(**setting)
