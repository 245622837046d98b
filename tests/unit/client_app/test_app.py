"""The ClientApp's three answers, on real messages and the digits data."""

import time
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.testing import assert_array_equal

from client_app.app import app
from client_app.client_data import load_client_data
from client_app.evaluator import evaluate
from common.config import parse
from common.errors import ClientError, ConfigError
from common.methods import METHODS, FedAvg
from common.models import FlatModel, build
from common.types import LOSS_BEFORE, STEPS
from common.wire.arrays import FlatCodec
from common.wire.client_card import ClientCard
from common.wire.content import ARRAYS, CONFIG, METRICS
from common.wire.messages import LATE_SECONDS, Order, TrainReply, read_train_reply
from common.wire.reply_metrics import CORRECT, EXAMPLES, LOSS_SUM
from tests.builders import assert_same

pytestmark = pytest.mark.usefixtures("flower_identity")

CLIENTS = 4
BASE = {"clients": CLIENTS, "data.partition": "iid", "train.device": "cpu", "train.lr": 0.05}
SHAPE = (1, 8, 8)


def flat_model() -> FlatModel:
    return FlatModel(build("mlp", SHAPE, 10, seed=1))


def context_of(client: int = 2, run: Mapping[str, Any] | None = None, **node: Any) -> Context:
    config = parse({**BASE, **(run or {})}).to_flat()
    place = {"partition-id": client, "num-partitions": CLIENTS, **node}
    return Context(1, 7, place, RecordDict(), config)


def order_of(kind: str, *, number: int = 1, method: str = "fedavg", lr: float = 0.05) -> Message:
    flat = flat_model()
    rule = METHODS[method]()
    server_payload = rule.server_payload(rule.init(flat.layout), "2")
    arrays = FlatCodec(flat.layout).pack(flat.copy_weights(), {})
    config = Order(number, lr, flat.layout.digest, server_payload).config()
    return Message(RecordDict({ARRAYS: arrays, CONFIG: config}), 1003, kind)


def trained(context: Context, **order: Any) -> TrainReply:
    reply = app(order_of("train", **order), context)
    assert reply.has_content(), reply.error
    codec = FlatCodec(flat_model().layout)
    return read_train_reply(reply.content, codec, order.get("number", 1))


def test_a_client_says_who_it_is_and_what_it_holds() -> None:
    reply = app(Message(RecordDict({CONFIG: ConfigRecord()}), 1003, "query"), context_of())
    card = ClientCard.read(reply.content)
    assert (card.partition, card.shape, card.classes) == ("2", SHAPE, 10)
    assert card.device == "trains on the CPU, as asked"
    assert card.train_examples + card.test_examples in (449, 450)


@pytest.mark.parametrize("method", METHODS)
def test_training_takes_the_counted_steps_and_returns_what_the_method_needs(method: str) -> None:
    reply = trained(context_of(run={"method": method}), method=method)
    layout, rule = flat_model().layout, METHODS[method]()
    assert reply.client == "2"
    assert reply.steps == -(-reply.examples // 32)
    assert reply.lr_sum == pytest.approx(reply.steps * 0.05)
    assert {k: len(v) for k, v in reply.client_payload.items()} == rule.expected_payload(
        rule.init(layout)
    )
    assert not np.array_equal(reply.weights, flat_model().copy_weights())
    needed = set(rule.needs) - {STEPS}  # the steps are a field of the reply
    assert set(reply.metrics) == {"loss", "seconds", *needed}


def test_the_only_copies_of_the_model_are_the_trained_one_its_gradient_and_the_reply() -> None:
    """torch's memory, which holds the first two, is not counted here."""
    context, order, model = context_of(), order_of("train"), 4 * flat_model().layout.size
    app(order_of("train"), context)  # loads the data
    tracemalloc.start()
    try:
        reply = app(order, context)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reply.has_content()
    assert model <= peak < 1.5 * model


@pytest.mark.parametrize("method", ["fedpvr", "scaffold"])
def test_the_first_variate_is_the_mean_gradient_of_the_steps_taken(method: str) -> None:
    """Before round 1 all corrections are zero, so c_i+ = (received - returned) / sum of rates."""
    reply, layout = trained(context_of(run={"method": method}), method=method), flat_model().layout
    rule = METHODS[method]()
    block = rule.local_rule(rule.server_payload(rule.init(layout), "2"), layout).block
    moved = block.take(flat_model().copy_weights() - reply.weights)
    np.testing.assert_allclose(
        reply.client_payload["variate"], moved / reply.lr_sum, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_same_order_gets_the_same_bits_from_a_client_that_holds_nothing(method: str) -> None:
    context = context_of(run={"method": method})
    one = trained(context, method=method, number=3)
    trained(context, method=method, number=4)
    trained(context_of(1, run={"method": method}), method=method, number=3)
    other = trained(context_of(run={"method": method}), method=method, number=3)
    assert_array_equal(one.weights, other.weights)
    assert_same(dict(one.client_payload), dict(other.client_payload))
    assert dict(context.state) == {}


def test_the_orders_learning_rate_is_used_and_not_the_configs() -> None:
    still = trained(context_of(), lr=1e-12)
    assert still.lr_sum == pytest.approx(still.steps * 1e-12)
    np.testing.assert_allclose(still.weights, flat_model().copy_weights(), atol=1e-8)


def test_evaluation_counts_the_clients_own_test_samples() -> None:
    metrics = app(order_of("evaluate"), context_of()).content[METRICS]
    assert set(metrics) == {EXAMPLES, CORRECT, LOSS_SUM}
    client = load_client_data(context_of().run_config, context_of().node_config)
    assert metrics[EXAMPLES] == len(client.split.test)
    assert 0 <= metrics[CORRECT] <= metrics[EXAMPLES]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"model": "resnet8"}, "layout"),
        ({"clients": 5}, "the run is for 5 clients, but there are 4 nodes"),
        ({"train.batch-size": 100_000, "train.drop-last": True}, None),
    ],
)
def test_what_is_wrong_comes_back_as_one_sentence_or_as_nothing_to_train_on(
    run: dict[str, Any], said: str | None
) -> None:
    reply = app(order_of("train"), context_of(run=run))
    if said is None:
        assert reply.content[METRICS][EXAMPLES] == 0
    else:
        assert said in str(reply.error.reason)
        assert "\n" not in str(reply.error.reason)


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/5240
def test_a_diverging_client_sends_an_error_and_no_model() -> None:
    reply = app(order_of("train", lr=1e30), context_of())
    assert reply.has_error()
    assert "lower train.lr" in str(reply.error.reason)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_order_whose_deadline_is_over_is_left_out(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, now = order_of(kind), time.time()
    left = order.metadata.ttl - LATE_SECONDS
    monkeypatch.setattr(time, "time", lambda: now + left - 1)
    assert app(order, context_of()).has_content()
    monkeypatch.setattr(time, "time", lambda: now + left + 3)
    assert "3.0 s after its deadline" in str(app(order, context_of()).error.reason)


def test_an_order_with_two_models_is_refused() -> None:
    order = order_of("train")
    order.content["more"] = order.content[ARRAYS]
    assert "2 ArrayRecords, expected one" in str(app(order, context_of()).error.reason)


@pytest.mark.parametrize("node", [{"partition-id": 4}, {"partition-id": -1}, {"partition-id": "2"}])
def test_a_node_that_does_not_say_which_part_it_holds_is_refused(node: dict[str, Any]) -> None:
    context = context_of(**node)
    with pytest.raises(ClientError, match="partition-id"):
        load_client_data(context.run_config, context.node_config)
    with pytest.raises(ClientError, match="partition-id"):
        load_client_data(context.run_config, {})


def test_a_run_config_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.lr"):
        load_client_data({**context_of().run_config, "train.lr": -1.0}, context_of().node_config)


def test_clients_hold_disjoint_parts_of_the_same_data() -> None:
    parts = []
    for client in range(CLIENTS):
        context = context_of(client)
        client = load_client_data(context.run_config, context.node_config)
        parts += [client.split.train, client.split.test, client.split.calibration]
    everything = np.concatenate(parts)
    assert len(everything) == len(set(everything.tolist())) == len(client.data)


def test_the_loss_before_training_is_told_where_the_method_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is that of the model received on all training samples, so training changes nothing."""
    context = context_of(run={"method": "fedavg"})
    assert LOSS_BEFORE not in trained(context).metrics
    monkeypatch.setattr(FedAvg, "needs", (LOSS_BEFORE,))
    told = {trained(context, lr=lr).metrics[LOSS_BEFORE] for lr in (0.01, 0.05)}
    client = load_client_data(context.run_config, context.node_config)
    whole = evaluate(flat_model(), client.data, client.split.train)
    assert told == {whole.loss_sum / whole.examples}
