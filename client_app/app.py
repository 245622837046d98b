"""The Flower ClientApp: train, evaluate, calibrate and describe one client.

A reply depends on the message, the client's data and the seed. A restart loses nothing: the
personal model of a client (Ditto) is on its disk.
"""

import logging
import time
from collections.abc import Callable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_app.client_data import ClientData, load_client_data
from client_app.conformal import calibrate, cover
from client_app.error_text import error_text
from client_app.evaluator import evaluate
from client_app.gradients import full_gradient, gradient_metrics
from client_app.personal import evaluate_personal, train_personal
from client_app.personal_store import PersonalStore
from client_app.trainer import train
from client_app.watchdog import Watchdog, seconds_since_start
from common.conformal.conformal_replies import CALIBRATE, COVER, read_coverage_request
from common.errors import ClientError, FedError, WireError
from common.flower_internals import ErrorCode
from common.types import LOSS, LOSS_BEFORE, Buffers, Vector
from common.wire.arrays import FlatCodec
from common.wire.client_card import ClientCard
from common.wire.content import CONFIG, METRICS, records_of
from common.wire.messages import Order, TrainReply, client_id_of, seconds_late, timeout_of
from common.wire.reply_metrics import (
    CORRECT,
    EXAMPLES,
    LOSS_SUM,
    PERSONAL,
    PERSONAL_ROUND,
    SECONDS,
    START_SECONDS,
    to_metric_record,
)

logger = logging.getLogger("flwr")
app = ClientApp()
Handler = Callable[[Message, ClientData], RecordDict]


def reply_with_errors(handler: Handler) -> Callable[[Message, Context], Message]:
    """Return the handler with each error turned into an error reply, see `error_text`."""

    def answer(message: Message, context: Context) -> Message:
        content = message.content
        watchdog = Watchdog.of(context.node_config, timeout_of(content))
        start = seconds_since_start() if watchdog.on else 0.0
        try:
            client = load_client_data(
                context.run_config, context.node_config, client_id_of(content)
            )
            reply = handler(message, client)
            if watchdog.on and METRICS in reply:
                records_of(reply, MetricRecord)[METRICS][START_SECONDS] = start
            return Message(reply, reply_to=message)
        except Exception as error:
            if isinstance(error, FedError):
                logger.error("this client cannot answer: %s", error)
            else:
                logger.exception("this client cannot answer")
            text = error_text(error, context.node_config)
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code, text), reply_to=message)
        finally:
            watchdog.cancel()

    return answer


def load_order(message: Message, client: ClientData) -> tuple[Order, Vector, Buffers]:
    """Load the received model into this thread's model. Return the order, weights and buffers.

    Raises:
        ClientError: the deadline of the order has passed. The server no longer waits, and a late
            client would fall further behind.
        WireError: the message is not an order for this model.
    """
    if (late := seconds_late(message.metadata)) > 0:
        raise ClientError(f"the order came {late:.1f} s after its deadline; it is left out")
    codec = FlatCodec(client.flat.layout)
    order = Order.read(message.content, codec.layout)
    records = list(records_of(message.content, ArrayRecord).values())
    if len(records) != 1:
        raise WireError(f"the order has {len(records)} ArrayRecords, expected one")
    weights, buffers = codec.unpack(records[0])
    client.flat.load(weights, buffers)
    return order, weights, buffers


@app.train()
@reply_with_errors
def train_client(message: Message, client: ClientData) -> RecordDict:
    """Take K local steps from the received weights. Reply with the new weights."""
    begin = time.perf_counter()
    order, received, buffers = load_order(message, client)
    flat, method, config = client.flat, client.config.chosen, client.config
    metrics = {}
    if LOSS_BEFORE in method.needs:
        before = evaluate(flat, client.data, client.split.train)
        metrics = {LOSS_BEFORE: before.loss_sum / max(before.examples, 1)}
    first_gradient = None
    diagnosed = config.diagnostics.gradients and config.is_diagnosed(order.round)
    if diagnosed and len(client.split.train):
        first_gradient = full_gradient(flat, client.data, client.split.train)
    result = train(
        flat,
        client.data,
        client.split.train,
        config.train,
        method.local_rule(order.server_payload, flat.layout),
        lr=order.lr,
        seed=config.seed,
        path=(order.round, client.client_id),
    )
    trained = flat.weights_view()
    if first_gradient is not None and result.steps:
        last_gradient = full_gradient(flat, client.data, client.split.train)
        metrics |= gradient_metrics(first_gradient, last_gradient, received, trained, result)
    client_payload: Mapping[str, Vector] = {}
    if result.steps:
        client_payload = method.client_payload(
            order.server_payload, flat.layout, received, trained, result.lr_sum
        )
    reply = TrainReply(
        client=client.client_id,
        round=order.round,
        weights=trained,
        buffers=flat.copy_buffers(),
        examples=result.examples,
        steps=result.steps,
        lr_sum=result.lr_sum,
        client_payload=client_payload,
        metrics={LOSS: result.loss, **metrics},
    ).record(FlatCodec(flat.layout))
    proximal_weight = method.personal_proximal_weight()
    if proximal_weight is not None and result.steps:  # overwrites the model, packed by now
        store = PersonalStore.of(client)
        train_personal(client, store, proximal_weight, order, received, buffers)
    records_of(reply, MetricRecord)[METRICS][SECONDS] = time.perf_counter() - begin
    return reply


@app.evaluate()
@reply_with_errors
def evaluate_client(message: Message, client: ClientData) -> RecordDict:
    """Count the correct predictions on this client's test samples."""
    order, _, _ = load_order(message, client)
    counts = evaluate(client.flat, client.data, client.split.test)
    metrics = {EXAMPLES: counts.examples, CORRECT: counts.correct, LOSS_SUM: counts.loss_sum}
    if client.config.chosen.personal_proximal_weight() is not None:
        personal, personal_round = evaluate_personal(client, PersonalStore.of(client), order.round)
        metrics |= {
            PERSONAL + CORRECT: personal.correct,
            PERSONAL + LOSS_SUM: personal.loss_sum,
            PERSONAL_ROUND: personal_round,
        }
    return RecordDict({METRICS: to_metric_record(metrics)})


@app.evaluate(CALIBRATE)
@reply_with_errors
def calibrate_client(message: Message, client: ClientData) -> RecordDict:
    """Count the scores of this client's calibration samples."""
    load_order(message, client)
    return RecordDict({CONFIG: ConfigRecord(calibrate(client).table())})


@app.evaluate(COVER)
@reply_with_errors
def cover_client(message: Message, client: ClientData) -> RecordDict:
    """Count the sizes of the prediction sets of the test samples, and how many cover the label."""
    load_order(message, client)
    thresholds = read_coverage_request(records_of(message.content, ConfigRecord)[CONFIG])
    return RecordDict({CONFIG: ConfigRecord(cover(client, thresholds).table())})


@app.query()
@reply_with_errors
def describe_client(message: Message, client: ClientData) -> RecordDict:
    """Describe this client. Its data are loaded by now, so it can take part."""
    return ClientCard(
        partition=client.partition,
        device=client.device.description,
        shape=client.data.shape,
        classes=len(client.data.classes),
        train_examples=len(client.split.train),
        test_examples=len(client.split.test),
    ).record()
