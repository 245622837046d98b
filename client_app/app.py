"""The Flower ClientApp: train, evaluate, and say who you are. A reply depends on the message,
the client's data and the seed, and on nothing that a restart could lose; a model of the
client's own is on its disk."""

import logging
import time
from collections.abc import Callable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from client_app.client_data import ClientData, load_client_data
from client_app.conformal import calibrate, cover
from client_app.evaluator import evaluate
from client_app.gradients import full_gradient, gradient_metrics
from client_app.personal import evaluate_personal, train_personal
from client_app.personal_store import PersonalStore
from client_app.trainer import train
from client_app.watchdog import Watchdog, seconds_since_start
from common.conformal.replies import CALIBRATE, COVER, read_coverage_request
from common.errors import ClientError, DataError, FedError, WireError
from common.types import LOSS, LOSS_BEFORE, Buffers, Vector
from common.wire.arrays import FlatCodec
from common.wire.content import CONFIG, METRICS, records_of
from common.wire.messages import (
    ClientCard,
    Order,
    TrainReply,
    client_id_of,
    seconds_late,
    timeout_of,
)
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
    """Turn our own errors into error replies of one sentence; others pass as they are."""

    def answer(message: Message, context: Context) -> Message:
        content = message.content
        guard = Watchdog.of(context.node_config, timeout_of(content))
        start = seconds_since_start() if guard.on else 0.0
        try:
            client = load_client_data(
                context.run_config, context.node_config, client_id_of(content)
            )
            reply = handler(message, client)
            if guard.on and METRICS in reply:
                records_of(reply, MetricRecord)[METRICS][START_SECONDS] = start
            return Message(reply, reply_to=message)
        except FedError as error:
            logger.error("this client cannot answer: %s", error)
            said = str(error)
            if isinstance(error, DataError):  # the rest lists files, which concern nobody else
                said = said.partition("\n")[0]
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code, said), reply_to=message)
        finally:
            guard.cancel()

    return answer


def load_order(message: Message, client: ClientData) -> tuple[Order, Vector, Buffers]:
    """Load the model that came into this thread's model; return the order and the model.

    An order whose deadline is over is not carried out: a client that was held up would else stay
    behind by working on what nobody waits for.
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
    """Take K local steps from the weights received and return the weights reached."""
    begin = time.perf_counter()
    order, received, buffers = load_order(message, client)
    flat, method, config = client.flat, client.config.chosen, client.config
    told = {}
    if LOSS_BEFORE in method.needs:
        whole = evaluate(flat, client.data, client.split.train)
        told = {LOSS_BEFORE: whole.loss_sum / max(whole.examples, 1)}
    first = None
    if (
        config.diagnostics.gradients
        and config.is_diagnosed(order.round)
        and len(client.split.train)
    ):
        first = full_gradient(flat, client.data, client.split.train)
    done = train(
        flat,
        client.data,
        client.split.train,
        config.train,
        method.local_rule(order.server_payload, flat.layout),
        lr=order.lr,
        seed=config.seed,
        path=(order.round, client.client_id),
    )
    reached = flat.weights_view()
    if first is not None and done.steps:
        last = full_gradient(flat, client.data, client.split.train)
        told |= gradient_metrics(first, last, received, reached, done)
    client_payload: Mapping[str, Vector] = {}
    if done.steps:
        client_payload = method.client_payload(
            order.server_payload, flat.layout, received, reached, done.lr_sum
        )
    reply = TrainReply(
        client=client.client_id,
        round=order.round,
        weights=reached,
        buffers=flat.copy_buffers(),
        examples=done.examples,
        steps=done.steps,
        lr_sum=done.lr_sum,
        client_payload=client_payload,
        metrics={LOSS: done.loss, **told},
    ).record(FlatCodec(flat.layout))
    pull = method.personal_proximal_weight()
    if pull is not None and done.steps:  # writes over the model, which is packed by now
        train_personal(client, PersonalStore.of(client), pull, order, received, buffers)
    records_of(reply, MetricRecord)[METRICS][SECONDS] = time.perf_counter() - begin
    return reply


@app.evaluate()
@reply_with_errors
def evaluate_client(message: Message, client: ClientData) -> RecordDict:
    """Count the right answers on this client's test samples."""
    order, _, _ = load_order(message, client)
    counts = evaluate(client.flat, client.data, client.split.test)
    metrics = {EXAMPLES: counts.examples, CORRECT: counts.correct, LOSS_SUM: counts.loss_sum}
    if client.config.chosen.personal_proximal_weight() is not None:
        own, since = evaluate_personal(client, PersonalStore.of(client), order.round)
        metrics |= {
            PERSONAL + CORRECT: own.correct,
            PERSONAL + LOSS_SUM: own.loss_sum,
            PERSONAL_ROUND: since,
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
    """Count how large the sets of this client's test samples are, and which hold the truth."""
    load_order(message, client)
    thresholds = read_coverage_request(records_of(message.content, ConfigRecord)[CONFIG])
    return RecordDict({CONFIG: ConfigRecord(cover(client, thresholds).table())})


@app.query()
@reply_with_errors
def describe_client(message: Message, client: ClientData) -> RecordDict:
    """Say who this client is and that it can take part: its data are loaded by now."""
    return ClientCard(
        partition=client.partition,
        device=client.device.description,
        shape=client.data.shape,
        classes=len(client.data.classes),
        train_examples=len(client.split.train),
        test_examples=len(client.split.test),
    ).record()
