"""One bad client costs itself the round and nobody else; every reason is written down."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import AggregationError
from common.layout import Layout
from common.methods import METHODS, FedAvg, FedPCD, FedPVR, Method, Scaffold
from common.types import LOSS, LOSS_BEFORE, STEPS, ClientUpdate, Cohort, Step, Vector
from common.wire.arrays import WEIGHTS
from common.wire.content import ARRAYS, CONFIG, METRICS
from common.wire.messages import LAYOUT, ROUND
from common.wire.reply_metrics import EXAMPLES, LR_SUM
from common.wire.vectors import VECTOR, put_vectors
from server_app.state.server_state import ServerState, next_state
from tests.builders import (
    LR,
    Federation,
    Quadratic,
    Tamper,
    assert_same,
    changed,
    failing,
    silent,
)
from tests.each import for_each

pytestmark = pytest.mark.usefixtures("flower_identity")
METHOD = pytest.mark.parametrize("method", [kind() for kind in METHODS.values()], ids=METHODS)


def aggregate_of(federation: Federation, number: int, names: str) -> ServerState[Any]:
    """What these clients' honest replies make of the federation's state, without the strategy."""
    strategy, state = federation.strategy, federation.strategy.state
    assert state is not None
    updates = []
    for order in strategy.configure_train(number, federation.arrays, ConfigRecord(), federation):
        reply = federation.train_reply(order)
        if reply.client in names:
            delta = state.weights - reply.weights
            updates.append(
                ClientUpdate(
                    reply.client,
                    reply.examples,
                    2,
                    2 * LR,
                    delta,
                    client_payload=reply.client_payload,
                    metrics=reply.metrics,
                )
            )
    after, _ = next_state(
        state, Cohort(number, LR, 5, tuple(updates)), federation.method, federation.layout, 1.0
    )
    return after


def without_arrays(content: RecordDict) -> None:
    del content[ARRAYS]


def without_metrics(content: RecordDict) -> None:
    del content[METRICS]


def metric(key: str, value: float) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[METRICS] = MetricRecord({**content[METRICS], key: value})

    return change


def setting(key: str, value: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[CONFIG][key] = value

    return change


def weights(change: Callable[[Any], Any]) -> Callable[[RecordDict], None]:
    def of(content: RecordDict) -> None:
        content[ARRAYS] = ArrayRecord({WEIGHTS: Array(change(content[ARRAYS][WEIGHTS].numpy()))})

    return of


BAD: dict[str, tuple[Tamper, str]] = {
    "raises": (failing("ValueError: boom"), "its ClientApp raised an error: ValueError: boom"),
    "is killed": (failing("", ErrorCode.CLIENT_APP_CRASHED), "its process died"),
    "goes offline": (failing("", ErrorCode.NODE_UNAVAILABLE), "it went offline"),
    "never replies": (silent, "no reply within the round's deadline"),
    "misses the tensor": (changed(lambda c: c[ARRAYS].clear()), "missing weights"),
    "has no arrays": (changed(without_arrays), 'no ArrayRecord "arrays"'),
    "has no metrics": (changed(without_metrics), 'no number "num-examples"'),
    "has one more array": (
        changed(lambda c: c[ARRAYS].update({"x": Array(np.ones(1))})), "unknown x",
    ),
    "has another shape": (changed(weights(lambda w: w[:-1])), r"got float32[11]"),
    "has another dtype": (changed(weights(lambda w: w.astype(np.float16))), "got float16[12]"),
    "overflowed in float16": (
        changed(weights(lambda w: (w + 70_000).astype(np.float16).astype(np.float32))),
        "12 value(s) are NaN or infinite",
    ),
    "answers another round": (changed(setting(ROUND, 1)), "the reply is for server-round 1, not 2"),
    "has another layout": (changed(setting(LAYOUT, "ab12")), "the reply is for keel-layout 'ab12'"),
    "claims to be another": (
        changed(setting("keel-client", "1")), 'says it is from client "1"',
    ),
    "has negative examples": (changed(metric(EXAMPLES, -3)), "to 9007199254740992, not -3"),
    "has half an example": (changed(metric(EXAMPLES, 1.5)), "to 9007199254740992, not 1.5"),
    "has NaN examples": (
        changed(metric(EXAMPLES, float("nan"))), "to 9007199254740992, not nan",
    ),
    "has no examples": (changed(metric(EXAMPLES, 0)), "nothing to train on"),
    "has one more metric": (changed(metric("extra", 4.0)), "does not know: extra"),
    "has NaN steps": (changed(metric(STEPS, float("nan"))), "must be finite"),
    "has infinite rates": (changed(metric(LR_SUM, float("inf"))), "must be finite"),
}  # fmt: skip


# A public report of this bug: https://github.com/flwrlabs/flower/issues/4346
@for_each("method", [kind() for kind in METHODS.values()])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # the client's own, in the test
@pytest.mark.parametrize("what", BAD)
def test_one_bad_client_is_named_and_the_others_are_aggregated(
    method: Method[Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    tamper, reason = BAD[what]
    caplog.clear()
    federation = Federation(method)
    federation.train(1)
    expected = aggregate_of(federation, 2, "0124")
    with caplog.at_level(logging.WARNING, logger="flwr"):
        federation.train(2, {"3": tamper})
    record = federation.record
    assert list(record.dropped) == ["3"]
    assert reason in record.dropped["3"]
    assert record.replied == ["0", "1", "2", "4"]
    assert record.void is None
    assert f"client 3 dropped: {record.dropped['3']}" in caplog.text
    assert_allclose(federation.weights, expected.weights, atol=1e-6)
    federation.train(3)
    assert federation.record.replied == ["0", "1", "2", "3", "4"]


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/5240
def test_a_metric_that_is_not_finite_is_left_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    federation = Federation(FedAvg())
    with caplog.at_level(logging.WARNING, logger="flwr"):
        metrics = federation.train(7, {"3": changed(metric(LOSS, float("nan")))})
    assert federation.record.dropped == {}
    assert metrics is not None
    assert metrics[LOSS] == pytest.approx((1 * 10 + 2 * 20 + 3 * 30 + 5 * 50) / 110)  # without 3
    assert "round 7: client 3 reports no finite loss" in caplog.text


def test_a_second_reply_of_the_same_client_is_not_counted() -> None:
    federation, honest = Federation(FedAvg()), Federation(FedAvg())
    once = federation._replies
    federation._replies = lambda *args: once(*args) * 2  # type: ignore[method-assign]
    federation.train(1)
    honest.train(1)
    assert federation.record.replied == ["0", "1", "2", "3", "4"]
    assert_same(federation.weights, honest.weights)
    assert federation.evaluate(1) == honest.evaluate(1)


def test_a_reply_of_an_unsampled_node_is_ignored() -> None:
    federation = Federation(FedAvg())
    stranger = Message(RecordDict(), 77, "train")
    federation.train(1, {"0": lambda order, content: Message(content, reply_to=stranger)})
    assert federation.record.replied == ["1", "2", "3", "4"]


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/4838
@pytest.mark.parametrize("method", [FedPVR(), Scaffold()])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.pop(CONFIG), "needs the vectors"),
        (lambda c: put_vectors(c[CONFIG], {"variate": np.ones(3)}), r"got {'variate': 3}"),
        (lambda c: put_vectors(c[CONFIG], {"more": np.ones(3)}), "'more': 3"),
        (lambda c: c[CONFIG].update({VECTOR + "variate": b"\0" * 48}), "match its digest"),
        (lambda c: c[CONFIG].update({VECTOR + "variate": b"\0" * 5}), "whole number of float32"),
        (lambda c: c[CONFIG].update({VECTOR + "variate": "text"}), "whole number of float32"),
        (
            lambda c: put_vectors(c[CONFIG], {"variate": np.full(c[CONFIG]["n"], np.nan)}),
            "NaN or infinite in variate",
        ),
    ],
)
def test_a_variate_that_is_missing_cut_or_damaged_is_refused(
    method: Method[Any], change: Callable[[RecordDict], None], reason: str
) -> None:
    federation, without = Federation(method), Federation(method)
    size = next(iter(method.expected_payload(method.init(federation.layout)).values()))

    def tamper(content: RecordDict) -> None:
        content[CONFIG]["n"] = size
        change(content)

    for number in (1, 2):
        federation.train(number, {"3": changed(tamper)})
        without.train(number, {"3": silent})
    assert reason in federation.record.dropped["3"]
    assert_same(federation.strategy.state, without.strategy.state)


# ---------------------------------------------------------------- void rounds


@METHOD
def test_too_few_replies_make_the_round_void_and_change_nothing(method: Method[Any]) -> None:
    federation = Federation(method, min_replies=4)
    federation.train(1)
    before, sent = federation.strategy.state, federation.arrays
    assert federation.train(2, {"0": silent, "1": failing("x")}) is None
    assert federation.record.void == "3 of 5 replies usable, 4 needed"
    assert federation.record.train_loss is not None
    assert federation.strategy.state is before
    assert federation.arrays is sent
    federation.train(3)
    assert federation.record.void is None


def test_void_rounds_in_a_row_end_the_run_and_say_why() -> None:
    federation = Federation(FedAvg(), max_void_rounds=2, min_replies=5)
    federation.train(1, {"2": failing("no disk")})
    federation.train(2)
    federation.train(3, {"2": failing("no disk")})
    with pytest.raises(AggregationError, match=r"2 void rounds .*2: .*no disk.*of round 2"):
        federation.train(4, {"2": failing("no disk")})
    assert federation.record.void


@METHOD
def test_a_step_that_overflows_makes_the_round_void(method: Method[Any]) -> None:
    federation = Federation(method, server_lr=1e39)
    before = federation.weights
    federation.train(1)
    assert "not finite float32 numbers" in str(federation.record.void)
    assert_same(federation.weights, before)


@METHOD
def test_an_update_that_overflows_is_dropped_although_the_weights_are_finite(
    method: Method[Any],
) -> None:
    federation = Federation(method)
    flat = Quadratic(np.zeros(12), np.zeros(12))
    federation.problems = dict.fromkeys(federation.problems, flat)
    federation.arrays = federation.codec.pack(np.full(12, 3e38, np.float32), {})
    federation.train(1, {"3": changed(weights(lambda w: -w))})
    assert list(federation.record.dropped) == ["3"]
    assert "too far from the model" in federation.record.dropped["3"]
    assert np.isfinite(federation.weights).all()


# A public report of this bug: https://github.com/qpsolvers/qpsolvers/issues/197
def test_a_round_without_sampled_clients_is_void() -> None:
    federation = Federation(FedPCD(), fraction_train=0.0)
    assert federation.train(1) is None
    assert federation.record.void == "no client was sampled to train"


@METHOD
def test_the_order_of_arrival_changes_neither_model_nor_record(
    method: Method[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, backward = Federation(method), Federation(method)
    replies = backward._replies
    monkeypatch.setattr(backward, "_replies", lambda *given: replies(*given)[::-1])
    for number in (1, 2):
        for federation in (forward, backward):
            federation.train(number, {"3": failing("no")})
            federation.evaluate(number)
        assert forward.record == backward.record
        assert forward.record.replied == ["0", "1", "2", "4"]
    assert_array_equal(forward.weights, backward.weights)


@METHOD
@for_each("many", [1e308, 2**53 + 2, float("inf")])
def test_an_impossible_number_of_examples_costs_its_own_client(
    method: Method[Any], many: float
) -> None:
    federation = Federation(method)
    federation.train(1, {"1": changed(metric(EXAMPLES, many))})
    assert list(federation.record.dropped) == ["1"]
    federation.evaluate(1, {"2": changed(metric(EXAMPLES, many))})
    evaluation = federation.record.evaluation
    assert evaluation is not None
    assert list(evaluation.absent) == ["2"]


def test_a_learning_rate_that_has_decayed_to_nothing_is_not_replaced() -> None:
    federation = Federation(FedAvg())
    federation.strategy.local_lr = lambda round_: 0.0
    federation.train(1)
    assert federation.record.lr == 0


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf"), -0.5])
def test_a_reply_without_the_loss_that_the_method_needs_is_dropped(
    loss: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(content: RecordDict) -> None:
        metrics = dict(content[METRICS])
        del metrics[LOSS_BEFORE]
        content[METRICS] = MetricRecord(metrics if loss is None else {**metrics, LOSS_BEFORE: loss})

    monkeypatch.setattr(FedAvg, "needs", (LOSS_BEFORE,))
    federation = Federation(FedAvg())
    federation.train(1, {"3": changed(say)})
    assert list(federation.record.dropped) == ["3"]
    reason = federation.record.dropped["3"]
    assert 'fedavg needs "loss-before", a number of at least 0' in reason
    assert "and client 3 sent" in reason


@pytest.mark.parametrize("steps", [None, 0, 0.5])
def test_a_reply_without_the_steps_that_the_method_needs_is_dropped(
    steps: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(content: RecordDict) -> None:
        metrics = dict(content[METRICS])
        del metrics[STEPS]
        content[METRICS] = MetricRecord(metrics if steps is None else {**metrics, STEPS: steps})

    monkeypatch.setattr(FedAvg, "needs", (STEPS,))
    federation = Federation(FedAvg())
    federation.train(1, {"3": changed(change)})
    assert federation.record.dropped == {
        "3": 'fedavg needs "steps", a whole number of at least 1, in the reply\'s metrics, '
        "and client 3 sent 0"
    }
    assert federation.record.replied == ["0", "1", "2", "4"]


def test_a_method_that_needs_the_steps_takes_those_of_an_ordinary_flower_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FedAvg, "needs", (STEPS,))
    federation = Federation(FedAvg())
    federation.train(1, {"3": changed(lambda content: content.pop(CONFIG))})
    assert federation.record.dropped == {}
    assert federation.record.replied == ["0", "1", "2", "3", "4"]


@dataclass(frozen=True)
class Lagging(FedAvg):
    """Evaluates the model that was there before the step."""

    def aggregate(self, cohort: Cohort, state: Any, layout: Layout) -> Step[Any]:
        step = super().aggregate(cohort, None, layout)
        return Step(step.direction, step.direction)

    def evaluation_offset(self, state: Any) -> Vector | None:
        return None if state is None else state


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_a_method_may_have_another_model_evaluated_than_trained_on(server_lr: float) -> None:
    federation = Federation(Lagging(), server_lr=server_lr)
    seen = []
    for number in (1, 2):
        before = federation.weights
        federation.train(number)
        asked = federation.strategy.configure_evaluate(
            number, federation.arrays, ConfigRecord(), federation
        )
        seen = [federation.codec.unpack(order.content[ARRAYS])[0] for order in asked]
        for weights in seen:
            assert_allclose(weights, before, rtol=1e-6)
    assert len(seen) == 5
    assert_allclose(federation.strategy.evaluated_weights, seen[0])
    assert not np.allclose(federation.weights, seen[0])
