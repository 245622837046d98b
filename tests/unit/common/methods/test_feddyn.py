"""FedDyn ends at the optimum of the mean loss, and keeps what it needs for that in one place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import ConfigError, WireError
from common.methods import FedDyn
from common.methods.variates import SHIFT, ControlVariates
from server_app.state.server_state import ServerState, evaluated_weights
from tests.builders import (
    EXACT,
    QUAD2,
    Federation,
    begin,
    bowls,
    cohort_of,
    drawn,
    layout_of_size,
    local_steps,
    play,
    silent,
)

LAYOUT = layout_of_size(2)
BOTH = [["1", "2"]]
TENTH = FedDyn(alpha=0.1)
ACTIVE = FedDyn(alpha=0.1, evaluate="active")

States = list[ServerState[ControlVariates]]


def quad2(method: FedDyn, cohorts: Sequence[Sequence[str]], **more: Any) -> States:
    return play(method, begin(method, LAYOUT, (1, 1)), LAYOUT, QUAD2, cohorts, **more)


def test_quad2() -> None:
    first, second = quad2(TENTH, BOTH * 2)
    assert_allclose(first.method.own.get("1"), (-0.0189, 0.0358), **EXACT)
    assert_allclose(first.method.own.get("2"), (0.0507, -0.0567), **EXACT)
    assert_allclose(first.method.mean, (0.0159, -0.01045), **EXACT)
    assert_allclose(first.weights, (0.682, 1.209), **EXACT)
    assert_allclose(evaluated_weights(first, ACTIVE, 1.0), (0.841, 1.1045), **EXACT)
    assert_allclose(second.method.mean, (0.02048379, -0.014968445), **EXACT)
    assert_allclose(second.weights, (0.4313242, 1.4038689), **EXACT)
    assert_allclose(evaluated_weights(second, ACTIVE, 1.0), (0.6361621, 1.25418445), **EXACT)


def test_quad2s_clients() -> None:
    """Before the first G_i and with it."""
    first = quad2(TENTH, BOTH)[0]
    for client, before, after in (
        ("1", (1.189, 0.642), (0.9275299, 0.7825862)),
        ("2", (0.493, 1.567), (0.3447943, 1.7257827)),
    ):
        gradient = QUAD2[client].gradient
        weights, client_payload = local_steps(TENTH, {}, LAYOUT, np.ones(2), gradient)
        assert_allclose(weights, before, **EXACT)
        assert client_payload == {}
        server_payload = TENTH.server_payload(first.method, client)
        weights, _ = local_steps(TENTH, server_payload, LAYOUT, first.weights, gradient)
        assert_allclose(weights, after, **EXACT)


def test_quad2_with_one_client_a_round() -> None:
    """h is over all N: it moves by half of what the one client moves."""
    first, second = quad2(TENTH, [["1"], ["2"]])
    assert_allclose(first.weights, (1.2835, 0.463), **EXACT)
    assert_allclose(first.method.mean, (-0.00945, 0.0179), **EXACT)
    shown = evaluated_weights(second, ACTIVE, 1.0)
    assert_allclose(shown, (0.6327655, 1.131493), **EXACT)
    assert_allclose(second.method.mean, (0.023086725, -0.01552465), **EXACT)
    assert_allclose(second.weights, (0.40189825, 1.2867395), **EXACT)


@pytest.mark.parametrize(
    ("alpha", "end", "within"),
    [
        (1.0, (0.5, 4 / 3), 1e-12),
        (0.1, (0.500004086, 1.333337512), 1e-9),
        (0.01, (0.517034411, 1.352414460), 1e-9),
    ],
)
def test_quad2_after_500_rounds(alpha: float, end: tuple[float, float], within: float) -> None:
    assert_allclose(quad2(FedDyn(alpha=alpha), BOTH * 500)[-1].weights, end, rtol=0, atol=within)


# ---------------------------------------------------------------- who keeps what


def test_h_is_what_the_papers_recursion_adds_up_to() -> None:
    layout, problems, cohorts = layout_of_size(6), bowls(7, 6), drawn(7, 3, 30)
    before, h = begin(TENTH, layout, np.ones(6)), np.zeros(6)
    for after in play(TENTH, before, layout, problems, cohorts):
        mean_delta = before.weights - evaluated_weights(after, ACTIVE, 1.0)
        h += 0.1 / 7 * 3 * mean_delta
        assert_allclose(after.method.mean, h, **EXACT)
        assert_allclose(after.weights, before.weights - mean_delta - h / 0.1, **EXACT)
        before = after


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_active_is_the_mean_of_the_rounds_models(server_lr: float) -> None:
    """With a server learning rate, what the server makes of that mean."""
    layout, problems = layout_of_size(6), bowls(5, 6)
    start = begin(ACTIVE, layout, np.ones(6), np.float32)
    assert evaluated_weights(start, ACTIVE, server_lr) is start.weights
    first, _ = play(ACTIVE, start, layout, problems, [["0", "3"]] * 2, server_lr=server_lr)
    ends = [
        local_steps(ACTIVE, {}, layout, start.weights, problems[client].gradient)[0]
        for client in ("0", "3")
    ]
    mean = start.weights + server_lr * (np.mean(ends, axis=0) - start.weights)
    shown = evaluated_weights(first, ACTIVE, server_lr)
    assert shown.dtype == np.float32
    assert_allclose(shown, mean, rtol=1e-5)
    assert evaluated_weights(first, FedDyn(), server_lr) is first.weights


def test_clients_weigh_the_same_whatever_their_examples() -> None:
    ends = [quad2(TENTH, BOTH * 3, examples=sizes)[-1] for sizes in (int, lambda _: 1)]
    assert_array_equal(ends[0].weights, ends[1].weights)


def test_only_a_client_that_was_seen_is_sent_anything() -> None:
    (state,) = quad2(TENTH, [["1"]])
    sent = TENTH.server_payload(state.method, "1")
    assert_array_equal(sent[SHIFT], -state.method.own.get("1"))
    assert TENTH.server_payload(state.method, "2") == {}
    assert TENTH.expected_payload(state.method) == {}


@pytest.mark.usefixtures("flower_identity")
def test_a_client_whose_reply_is_lost_is_sent_the_gradient_of_its_last_reply_again() -> None:
    federation = Federation(FedDyn())
    federation.train(1)
    known = federation.strategy.state.method
    federation.train(2, {"2": silent})
    after = federation.strategy.state.method
    assert_array_equal(FedDyn().server_payload(after, "2")[SHIFT], -known.own.get("2"))
    assert not np.array_equal(FedDyn().server_payload(after, "1")[SHIFT], -known.own.get("1"))
    held = [entry.vector for entry in after.own.entries.values()]
    assert_allclose(after.mean, np.mean(held, axis=0), atol=1e-7)


@pytest.mark.parametrize("clients", [2, 5])
def test_a_federation_that_changes_its_size_changes_h_and_no_gradient(clients: int) -> None:
    (before,) = quad2(TENTH, BOTH)
    still = cohort_of(np.zeros((2, 2)), clients=clients, round=2)
    step = TENTH.aggregate(still, before.method, LAYOUT)
    assert_allclose(step.state.mean, before.method.mean * 2 / clients, **EXACT)
    assert_array_equal(step.state.own.get("1"), before.method.own.get("1"))
    assert_allclose(step.direction, step.state.mean / 0.1, **EXACT)


# ---------------------------------------------------------------- what is refused and recorded


@pytest.mark.parametrize("alpha", [0.0, -0.1, np.nan])
def test_alpha_must_not_vanish_in_float32(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha must be at least 1e-06"):
        FedDyn(alpha=alpha)


def test_an_unknown_model_to_evaluate_is_refused() -> None:
    with pytest.raises(ConfigError, match='"server", "active"'):
        FedDyn(evaluate="all")


@pytest.mark.parametrize("size", [1, 3])
def test_a_gradient_of_another_size_is_refused_not_stretched(size: int) -> None:
    with pytest.raises(WireError, match=f"feddyn corrects 2 .* sent {size}; start both with"):
        FedDyn().local_rule({SHIFT: np.zeros(size)}, LAYOUT)


def test_momentum_is_objected_to_and_weight_decay_is_not() -> None:
    assert list(FedDyn().config_problems(lr=0.1, momentum=0.0, weight_decay=1e-3)) == []
    (said,) = FedDyn().config_problems(lr=0.1, momentum=0.9, weight_decay=0.0)
    assert said.startswith("train.momentum must be 0, not 0.9")


def test_the_record_tells_how_far_h_pushes() -> None:
    cohort = cohort_of([[3.0, 4.0]], clients=5)
    report = TENTH.aggregate(cohort, TENTH.init(LAYOUT), LAYOUT).report
    assert report == {"gradients": 1, "h_over_alpha": pytest.approx(1.0)}
