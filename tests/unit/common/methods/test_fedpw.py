"""FedPW: the card's numbers, the rule written out on matrices, and every edge."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.linalg import norm
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import ConfigError
from common.layout import Layout, Tensor
from common.methods import FedAvg, FedPW
from common.methods.fedpw import FedPWState, MomentumWeights
from common.methods.momentum import Momentum
from common.rng import stream
from common.types import LOSS, LOSS_BEFORE, Cohort, Step, Vector
from server_app.state.server_state import ServerState, next_state
from tests.builders import EXACT, cohort_of, layout_of_size

FIVE = Layout((Tensor("w", (5,)),))
LOSSES = ((2.0, 1.0), (1.4, 0.6))
DELTAS = np.array(
    [
        [[0.4, 0.1, -0.2, 0.05, 0.3], [0.1, 0.3, 0.2, -0.1, 0.2]],
        [[0.3, 0.2, -0.1, 0.05, 0.25], [0.2, 0.1, 0.3, -0.05, 0.15]],
    ]
)


def rounds(
    method: FedPW, deltas: Any, losses: Sequence[Any] = LOSSES, layout: Layout = FIVE
) -> list[Step[FedPWState]]:
    """One step after another of the same clients, without moving the model."""
    state, steps = FedPWState(), []
    for number, (rows, told) in enumerate(zip(deltas, losses, strict=True), start=1):
        cohort = cohort_of(rows, losses=told, round=number)
        steps.append(method.aggregate(cohort, state, layout))
        state = steps[-1].state
    return steps


@pytest.mark.parametrize(
    ("stride", "theta"),
    [
        (10, (0.394073169627, 0.699404200889, 1.012449459857, 1.004139150943, 0.481349979611)),
        (1, (0.375041119143, 0.699404200889, 1.012449459857, 1.004139150943, 0.465919685520)),
    ],
)
def test_the_worked_example(stride: int, theta: Vector) -> None:
    method = FedPW(beta=0.3, drop=0.4, stride=stride)
    start = ServerState(0, np.ones(5), {}, FedPWState())
    state, step = next_state(start, cohort_of(DELTAS[0], losses=LOSSES[0]), method, FIVE, 1.0)
    first = (0.291721698113, 0.172185534591, -0.055628930818, -0.004139150943, 0.263907232704)
    assert_allclose(step.direction, first, **EXACT)
    assert step.report["rho"] == pytest.approx(0.6625, abs=1e-9)
    assert weights(step) == pytest.approx([0.639072327044, 0.360927672956], abs=1e-9)
    assert held(state.method) == [
        pytest.approx([2 / 3, 1 / 3], abs=1e-9),
        pytest.approx([0.584905660377, 0.415094339623], abs=1e-9),
    ]

    cohort = cohort_of(DELTAS[1], losses=LOSSES[1], round=2)
    state, step = next_state(state, cohort, method, FIVE, 1.0)
    assert_allclose(state.weights, theta, **EXACT)
    assert step.report["rho"] == pytest.approx(0.690027676184, abs=1e-9)
    assert weights(step) == pytest.approx([0.6420513226, 0.3579486774], abs=1e-9)
    assert step.report["drop"] == pytest.approx({"1": 0.24, "2": 0.56}, abs=1e-12)
    assert step.report["enlarged"] == 1
    assert held(state.method) == [
        pytest.approx([0.671296296296, 0.328703703704], abs=1e-9),
        pytest.approx([0.576949248351, 0.423050751649], abs=1e-9),
    ]


def weights(step: Step[FedPWState]) -> list[float]:
    return list(step.report["weights"].values())


def held(state: FedPWState) -> list[list[float]]:
    """p and q."""
    return [list(s.momentum.weights.values()) for s in (state.losses, state.agreement)]


def written_out(rows: Vector, w: Vector, rates: Vector, drop: float, stride: int) -> Vector:
    """The card's step 3 on one tensor's matrix [m, s], with its standard deviations."""
    m, s = rows.shape
    masked, z = rows.copy(), 0.0
    for i in range(m):
        out = np.argsort(np.abs(rows[i]), kind="stable")[: int(s * rates[i] + 1e-9)]
        z += np.abs(rows[i, out[::stride]]).mean() / m if len(out) else 0.0
        masked[i, out] = 0
    step = w @ masked
    if (norm(masked, axis=1) == 0).any():
        return step
    units = masked / norm(masked, axis=1, keepdims=True)
    lengths = norm(units, axis=0)
    spread = np.full(s, np.inf)
    spread[lengths > 0] = (units[:, lengths > 0] / lengths[lengths > 0]).std(axis=0, ddof=1)
    agreed = np.argsort(spread, kind="stable")[: int(s * drop + 1e-9)]
    y = np.abs(step[agreed[::stride]]).mean() if len(agreed) else 0.0
    if y != 0 and z / y < 1:
        step[agreed] *= 1 + z / y
    return step


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("drop", "stride"), [(0.3, 10), (0.3, 1), (0.1, 3), (0.4, 1)])
def test_the_thinned_step_is_the_one_written_out(seed: int, drop: float, stride: int) -> None:
    """Clients with a common part agree on enough for the step to be enlarged."""
    layout, method = layout_of_size(60), FedPW(drop=drop, stride=stride)
    rng = stream(seed, "rows")
    deltas = rng.normal(size=(4, 5, 60)) * 0.5 + rng.normal(size=60)
    losses = rng.uniform(0.5, 2, (4, 5)).tolist()
    enlarged = 0
    for number, step in enumerate(rounds(method, deltas, losses, layout)):
        w = np.array(weights(step))
        if not number:
            assert_allclose(step.direction, w @ deltas[0], rtol=1e-12, atol=1e-15)
            continue
        inverse = 1 / np.array(losses[number])
        rates = np.minimum(inverse / inverse.sum() * 5 * drop, 1)
        assert_allclose(list(step.report["drop"].values()), rates, rtol=1e-12)
        for span in layout.spans.values():
            expected = written_out(deltas[number][:, span], w, rates, drop, stride)
            assert_allclose(step.direction[span], expected, rtol=1e-9, atol=1e-12)
        enlarged += step.report["enlarged"]
    assert enlarged > 0


# ---------------------------------------------------------------- who weighs how much


def test_absent_clients_keep_their_trends_and_the_weights_of_all_add_up_to_one() -> None:
    method = FedPW()
    first = rounds(method, DELTAS[:1], LOSSES[:1])[0].state
    cohort = cohort_of(DELTAS[1], names=["2", "3"], losses=(1.0, 3.0), round=2)
    step = method.aggregate(cohort, first, FIVE)
    p = step.state.losses.momentum
    # bl = 0.3 * 2 / 1.5; client 2 had 1/3 and the trend 0.1, client 3 nothing
    grown = {"1": 2 / 3, "2": 1 / 3 + 0.6 * 0.1 + 0.4 * 0.25, "3": 0.4 * 0.75}
    total = sum(grown.values())
    assert p.weights == pytest.approx({c: v / total for c, v in grown.items()})
    assert p.trends == pytest.approx({"1": 0.2, "2": 0.16, "3": 0.3})
    assert sum(step.state.agreement.momentum.weights.values()) == pytest.approx(1)
    assert sum(weights(step)) == pytest.approx(1)
    assert list(step.report["weights"]) == ["2", "3"]


def test_the_loss_during_training_is_what_counts() -> None:
    cohort = cohort_of(DELTAS[0], losses=LOSSES[0])
    told = ({LOSS: 3.0, LOSS_BEFORE: 9.0}, {LOSS: 1.0, LOSS_BEFORE: 0.1})
    updates = tuple(replace(u, metrics=m) for u, m in zip(cohort.updates, told, strict=True))
    step = FedPW().aggregate(replace(cohort, updates=updates), FedPWState(), FIVE)
    assert held(step.state)[0] == pytest.approx([0.75, 0.25])
    assert FedPW.needs == (LOSS,)


def test_a_client_that_points_elsewhere_may_weigh_less_than_nothing() -> None:
    rows = [[3.0, 0.0, 0, 0, 0], [-1.0, 0.1, 0, 0, 0]]
    step = FedPW().aggregate(cohort_of(rows, losses=(1.0, 0.9)), FedPWState(), FIVE)
    assert step.report["negative"] == 1
    assert held(step.state)[1][1] < 0
    assert sum(weights(step)) == pytest.approx(1)


def test_updates_that_cancel_agree_equally_and_set_no_level() -> None:
    row = stream(2, "row").normal(size=5)
    opposed = np.array([row, -row * (1 + 1e-9)])
    first, second = rounds(FedPW(), [opposed, DELTAS[0]])
    assert held(first.state)[1] == pytest.approx([0.5, 0.5])
    assert first.state.agreement.first == 0
    total = DELTAS[0].sum(axis=0)
    assert second.state.agreement.first == pytest.approx(total @ total / 2)


def test_losses_of_zero_are_possible_and_set_no_level() -> None:
    first, second = rounds(FedPW(), DELTAS, [(0.0, 0.0), (1.4, 0.6)])
    assert held(first.state)[0] == pytest.approx([0.5, 0.5])
    assert first.state.losses.first == 0
    assert second.state.losses.first == pytest.approx(1.0)
    (_, some) = rounds(FedPW(), DELTAS, [(2.0, 1.0), (0.0, 1.0)])
    assert some.report["drop"] == pytest.approx({"1": 0.6, "2": 0.0}, abs=1e-9)


def test_losses_beyond_all_measure_leave_everything_finite() -> None:
    steps = rounds(FedPW(), [*DELTAS, *DELTAS], [(1e308, 1e308), (1e-300, 1.0), *LOSSES])
    for step in steps:
        assert np.isfinite(step.direction).all()
        assert np.isfinite(held(step.state)).all()


def test_updates_a_thousand_times_those_of_the_first_round_leave_everything_finite() -> None:
    """The rate of q is far above 1 then, and its sum may turn negative: q stays as it was."""
    deltas = [DELTAS[0] * 1e-3, *[DELTAS[k % 2] * (1 + k % 3) for k in range(400)]]
    steps = rounds(FedPW(), deltas, [LOSSES[0]] * 401)
    assert held(steps[2].state)[1] == held(steps[1].state)[1]
    for step in steps:
        assert np.isfinite(step.direction).all()
        assert sum(held(step.state)[1]) == pytest.approx(1)
        assert step.state.agreement.first == steps[0].state.agreement.first
    runaway = MomentumWeights(Momentum({"1": 1.0}, {"1": -1e308}), first=1.0)
    assert runaway.after({"1": 1.0}, level=1e10, beta=1.0) == runaway


def test_participants_whose_weights_do_not_add_up_to_something_positive_weigh_the_same() -> None:
    start = (
        FedPW()
        .aggregate(cohort_of([[3.0, 0, 0, 0, 0], [-1.0, 0.1, 0, 0, 0]]), FedPWState(), FIVE)
        .state
    )
    assert_array_equal(start.agreement.of_clients(["2"]), [1.0])
    assert_array_equal(start.agreement.of_clients(["2", "new"]), [0.5, 0.5])
    rounding = MomentumWeights(Momentum({"1": 0.1 + 0.2, "2": -0.3}))
    assert_array_equal(rounding.of_clients(["1", "2"]), [0.5, 0.5])


def test_with_nothing_to_weigh_and_nothing_to_drop_it_is_the_uniform_mean() -> None:
    for step, rows in zip(rounds(FedPW(beta=0.0, drop=0.0), DELTAS), DELTAS, strict=True):
        plain = FedAvg(uniform=True).aggregate(cohort_of(rows), None, FIVE)
        assert_allclose(step.direction, plain.direction, rtol=1e-12)
        assert weights(step) == [0.5, 0.5]


# ---------------------------------------------------------------- what is dropped


def later(rows: Any, losses: Any = None, **settings: Any) -> Step[FedPWState]:
    """The second round of clients that all weigh the same, with these displacements."""
    deltas = np.array([np.ones_like(rows), rows], dtype=np.float64)
    told = [[1.0] * len(rows), losses or [1.0] * len(rows)]
    layout = Layout((Tensor("w", (deltas.shape[2],)),))
    return rounds(FedPW(**{"stride": 1, "beta": 0.0} | settings), deltas, told, layout)[-1]


def test_of_equal_entries_the_first_are_dropped() -> None:
    assert_array_equal(later([[2.0, 1.0, -1.0, 1.0]], drop=0.5).direction, (2, 0, 0, 1))


def test_the_number_of_dropped_entries_is_not_a_victim_of_rounding() -> None:
    """5 * 0.6 is three, and so is 10 * (0.1 + 0.2)."""
    assert_array_equal(later([[1.0, 2, 3, 4, 5]], drop=0.6).direction, (0, 0, 0, 4, 5))
    ten = later([np.arange(1.0, 11)], drop=0.1 * 3).direction
    assert np.count_nonzero(ten) == 7
    assert np.count_nonzero(later([np.arange(1.0, 101)], drop=0.29).direction) == 71
    both = later([np.arange(1.0, 101)] * 2, drop=0.29).direction  # they agree on 30 to 58
    assert both[57] == pytest.approx(58 * (1 + 15 / 44))
    assert both[58] == 59


def test_a_client_with_a_large_share_of_small_loss_drops_everything() -> None:
    step = later([[1.0, 2, 3], [1.0, 2, 3], [4.0, 5, 6]], losses=[1.0, 1.0, 0.001], drop=0.5)
    assert step.report["drop"]["3"] == 1
    assert_allclose(step.direction, np.array([2.0, 4, 6]) / 3, rtol=1e-12)
    assert step.report["enlarged"] == 0


def test_where_too_little_agrees_nothing_is_enlarged() -> None:
    """z / y < 1 does not hold: as much is dropped as there is left."""
    step = later([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]], drop=0.5)
    assert_allclose(step.direction, (0, 0, 1, 1), rtol=1e-12)
    assert step.report["enlarged"] == 0


def test_agreed_entries_grow_by_what_was_dropped_on_average() -> None:
    step = later([[8.0, 1.0, 4.0], [8.0, 1.0, -4.0]], drop=0.34)
    assert_allclose(step.direction, (8 * (1 + 1 / 8), 0, 0), rtol=1e-12)
    assert step.report["enlarged"] == 1


def test_a_client_that_drops_nothing_of_a_tensor_adds_nothing_to_what_was_dropped() -> None:
    """Client 1 loses an entry of 1, client 2 none: half of that is given back."""
    step = later([[8.0, 1.0, 4.0], [8.0, 1.0, -4.0]], losses=[1.0, 3.0], drop=0.34)
    assert_allclose(step.direction, (8 * (1 + 0.5 / 8), 0.5, 0), rtol=1e-12)


def test_small_tensors_lose_nothing_and_are_not_enlarged() -> None:
    step = later([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], drop=0.3)
    assert_allclose(step.direction, (2, 2, 2), rtol=1e-12)
    assert step.report["enlarged"] == 0


def test_entries_that_are_empty_for_all_do_not_count_as_agreement() -> None:
    """The last column is 0 for both clients; the first is what they agree on."""
    step = later([[8.0, 3.0, 0.0], [8.0, -3.0, 0.0]], drop=0.34)
    assert step.direction[0] == 8.0  # what was dropped is 0
    step = later([[8.0, 3, 1, 1, 0, 0], [8.0, -3, 1, 1, 0, 0]], drop=0.5)
    # a third of the dropped entries were 1: z = 1/3; I = {0, 3, 1}, y = (8 + 1 + 0) / 3
    assert_allclose(step.direction, np.array([8, 0, 0, 1, 0, 0]) * (1 + 1 / 9), rtol=1e-12)


def test_one_client_alone_weighs_one_and_is_only_thinned() -> None:
    step = later([[5.0, 1.0, 4.0, 3.0]], drop=0.25, beta=0.3)
    assert weights(step) == [1.0]
    assert_array_equal(step.direction, (5, 0, 4, 3))


def test_float32_updates_get_a_float32_step_close_to_the_float64_one() -> None:
    layout, rng = layout_of_size(5000), stream(4, "rows")
    rows = (rng.normal(size=(3, 6, 5000)) * 0.3 + rng.normal(size=5000)).astype(np.float32)
    losses = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]] * 3
    step = rounds(FedPW(), rows, losses, layout)[-1]
    exact = rounds(FedPW(), rows.astype(np.float64), losses, layout)[-1]
    assert step.report["enlarged"] == exact.report["enlarged"] == 2
    assert step.direction.dtype == np.float32
    assert_allclose(step.direction, exact.direction, rtol=1e-4, atol=1e-5)


def test_the_clients_displacements_are_left_as_they_are() -> None:
    rows = DELTAS[1].copy()
    cohort: Cohort = cohort_of(rows, round=2)
    state = rounds(FedPW(), DELTAS[:1], LOSSES[:1])[0].state
    FedPW(drop=0.6).aggregate(cohort, state, FIVE)
    assert_array_equal(rows, DELTAS[1])


@pytest.mark.parametrize(
    "setting", [{"beta": -0.1}, {"drop": 1.1}, {"stride": 0}, {"stride": 2.5}, {"beta": np.nan}]
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        FedPW(**setting)
