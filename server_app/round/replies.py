"""Checks replies one by one, so that a bad reply affects only its own client."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from common.errors import AggregationError, FedError, WireError
from common.geometry import differences
from common.layout import Layout
from common.methods import Method
from common.runs.client_scores import ClientScore, Evaluation
from common.types import LOSS, STEPS, ClientId, ClientUpdate, Vector
from common.wire.arrays import WEIGHTS, Codec, refuse_non_finite
from common.wire.content import payload_bytes, records_of
from common.wire.messages import TrainReply, read_train_reply
from common.wire.reply_metrics import (
    CORRECT,
    LOSS_SUM,
    MAX_EXAMPLES,
    PERSONAL,
    PERSONAL_ROUND,
    SECONDS,
    START_SECONDS,
    read_metrics,
    to_metric_record,
)
from server_app.round.error_reasons import reason_of, refusal_of
from server_app.state.options import Options
from server_app.state.server_state import ServerState

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
ACCURACY = ("accuracy", "eval_acc")  # reported by ordinary Flower clients in place of a count
NO_COUNT = f'neither "{CORRECT}" nor "{ACCURACY[0]}" in the reply\'s metrics'


def check_train_reply(
    message: Message,
    client: ClientId,
    state: ServerState[Any],
    *,
    method: Method[Any],
    codec: Codec,
    options: Options,
    server_round: int,
) -> TrainReply:
    """Return the training reply of a client, checked except that its weights are finite.

    Args:
        message: the reply.
        client: the client that got the order.
        state: state of the server before the round.
        method: the method with its settings.
        codec: how the model travels.
        options: the names of the records and of the weight.
        server_round: number of the round.

    Raises:
        AggregationError, WireError: the reply cannot be used. The message says why.
    """
    if message.has_error():
        raise AggregationError(reason_of(message.error))
    reply = read_train_reply(
        message.content,
        codec,
        server_round,
        arrays_key=options.arrayrecord_key,
        weight_key=options.weighted_by_key,
    )
    if reply.client not in ("", client):
        raise AggregationError(f'the reply says it is from client "{reply.client}"')
    expected = method.expected_payload(state.method)
    sizes = {name: len(vector) for name, vector in reply.client_payload.items()}
    if sizes != expected:
        raise AggregationError(
            f"{method.name} needs the vectors {dict(expected)} in the reply's config, "
            f"got {sizes}; only FedKeel's ClientApp sends them"
        )
    refuse_missing_metrics(method, client, reply)
    return reply


def refuse_missing_metrics(method: Method[Any], client: ClientId, reply: TrainReply) -> None:
    """Check that a reply has every metric that `method.needs` declares.

    Raises:
        AggregationError: a metric is missing or out of range. The message names the method, the
            key and the client.
    """
    for key in method.needs:
        value: float | None
        if key == STEPS:
            wanted, value, is_valid = "a whole number of at least 1", reply.steps, reply.steps >= 1
        else:
            wanted, value = "a number of at least 0", reply.metrics.get(key)
            is_valid = value is not None and 0 <= value < inf
        if not is_valid:
            raise AggregationError(
                f'{method.name} needs "{key}", {wanted}, in the reply\'s metrics, and client '
                f"{client} sent {'no finite one' if value is None else value}"
            )


def update_of(client: ClientId, reply: TrainReply, delta: Vector) -> ClientUpdate:
    """Return the update of a client, given its reply and its displacement `delta` [d]."""
    return ClientUpdate(
        client=client,
        examples=reply.examples,
        steps=reply.steps,
        lr_sum=reply.lr_sum,
        delta=delta,
        buffers=reply.buffers,
        client_payload=reply.client_payload,
        metrics=reply.metrics,
    )


@dataclass
class CheckedReplies:
    """The replies of a round after the checks.

    Attributes:
        updates: the updates of the replies that can be used.
        contents: the content of these replies.
        dropped: the reason why each other reply cannot be used, by client.
        bytes_up: bytes of each reply, by client.
    """

    updates: list[ClientUpdate] = field(default_factory=list)
    contents: list[RecordDict] = field(default_factory=list)
    dropped: dict[ClientId, str] = field(default_factory=dict)
    bytes_up: dict[ClientId, int] = field(default_factory=dict)

    @property
    def train_loss(self) -> float | None:
        """Mean training loss, weighted by examples, None if no client reports it."""
        losses = [(u.metrics[LOSS], u.examples) for u in self.updates if LOSS in u.metrics]
        total = sum(examples for _, examples in losses)
        return sum(loss * examples for loss, examples in losses) / total if total else None

    @property
    def worked(self) -> dict[ClientId, dict[str, float]]:
        """The seconds that clients measured themselves."""
        parts = {"start": START_SECONDS, "work": SECONDS}
        return {
            u.client: {part: u.metrics[key] for part, key in parts.items() if key in u.metrics}
            for u in self.updates
            if SECONDS in u.metrics
        }


def check_replies(
    replies: Mapping[ClientId, Message],
    read: Callable[[Message, ClientId], TrainReply],
    weights: Vector,
    layout: Layout,
) -> CheckedReplies:
    """Check every reply of a round.

    Args:
        replies: by client, sorted by client.
        read: `check_train_reply` with the arguments of the round.
        weights: the weights that the clients received [d].
        layout: layout of the model.
    """
    checked = CheckedReplies()
    readable: dict[ClientId, TrainReply] = {}
    for client, message in replies.items():
        checked.bytes_up[client] = payload_bytes(message.content) if message.has_content() else 0
        try:
            readable[client] = read(message, client)
        except FedError as error:
            checked.dropped[client] = refusal_of(error)
    deltas, finite = differences(weights, [reply.weights for reply in readable.values()])
    for (client, reply), delta, is_finite in zip(readable.items(), deltas, finite, strict=True):
        try:
            if not is_finite:
                refuse_non_finite(WEIGHTS, reply.weights, layout)
                raise AggregationError("its weights are too far from the model for float32 numbers")
        except FedError as error:
            checked.dropped[client] = refusal_of(error)
            continue
        checked.updates.append(update_of(client, reply, delta))
        checked.contents.append(replies[client].content)
    return checked


def examples_of(reply: Message, weight_key: str) -> int:
    """Return on how many examples a client evaluated.

    Raises:
        AggregationError, WireError: the reply is an error, or the number is impossible.
    """
    if reply.has_error():
        raise AggregationError(reason_of(reply.error))
    examples = read_metrics(reply.content).get(weight_key)
    if examples is None or not 0 <= examples <= MAX_EXAMPLES or examples != int(examples):
        raise AggregationError(
            f'expected "{weight_key}", a whole number from 0 to {MAX_EXAMPLES}, got {examples!r}'
        )
    return int(examples)


def config_of(reply: Message) -> ConfigRecord:
    """Return the ConfigRecord of a reply.

    Raises:
        AggregationError, WireError: the reply is an error, or has no ConfigRecord.
    """
    if reply.has_error():
        raise AggregationError(reason_of(reply.error))
    config = next(iter(records_of(reply.content, ConfigRecord).values()), None)
    if config is None:
        raise WireError("no ConfigRecord in the reply")
    return config


def score_of(metrics: Mapping[str, float], examples: int) -> ClientScore | None:
    """Return the score of one client, None if it reports neither a count nor an accuracy.

    An accuracy becomes a count.

    Raises:
        AggregationError: the counts are impossible.
    """
    correct = metrics.get(CORRECT)
    shares = [metrics[key] for key in ACCURACY if isfinite(metrics.get(key, float("nan")))]
    if correct is None and shares:
        correct = round(shares[0] * examples)
    if correct is None and examples:
        return None
    correct = correct or 0
    if not 0 <= correct <= examples or correct != int(correct):
        raise AggregationError(f"{correct} correct answers of {examples} are impossible")
    loss_sum = metrics.get(LOSS_SUM)
    return ClientScore(examples, int(correct), None if loss_sum is None else float(loss_sum))


def personal_of(
    metrics: Mapping[ClientId, Mapping[str, float]],
    examples: Mapping[ClientId, int],
    absent: Mapping[ClientId, str],
) -> Evaluation | None:
    """Return the evaluation of the clients' personal models, None without any.

    Args:
        metrics: the metrics of each client that replied.
        examples: number of its test samples.
        absent: the reason why each other client has no score.
    """
    own = {
        client: {key.removeprefix(PERSONAL): value for key, value in values.items()}
        for client, values in metrics.items()
        if PERSONAL + CORRECT in values
    }
    if not own:
        return None
    scores, missing = {}, dict(absent)
    for client in metrics:
        try:
            score = score_of(own.get(client, {}), examples[client])
        except AggregationError as error:
            missing[client] = refusal_of(error)
            continue
        if score is None:
            missing[client] = NO_COUNT
        else:
            scores[client] = score
    new = [client for client in own if metrics[client].get(PERSONAL_ROUND) == 0]
    return replace(Evaluation.of(scores, missing), untrained=new)


def mean_metrics(
    contents: list[RecordDict],
    weights: list[int],
    weight_key: str,
    aggregate: MetricsFn | None,
) -> MetricRecord | None:
    """Return the weighted mean of each metric over the clients that report it, None without any.

    Args:
        contents: contents of the replies.
        weights: weight of each reply.
        weight_key: metric that weighs a reply, which is left out.
        aggregate: takes the place of the mean, as in Flower's FedAvg.
    """
    if not contents:
        return None
    if aggregate is not None:
        return aggregate(contents, weight_key)
    sums: dict[str, tuple[float, int]] = {}
    for content, weight in zip(contents, weights, strict=True):
        for key, value in read_metrics(content).items():
            if key != weight_key and isfinite(value):
                total, count = sums.get(key, (0.0, 0))
                sums[key] = total + value * weight, count + weight
    return to_metric_record({key: total / count for key, (total, count) in sums.items()})
