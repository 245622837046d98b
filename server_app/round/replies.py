"""Checks replies one by one, so that a bad reply affects only its own client."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any

from flwr.app import Message, RecordDict

from common.errors import AggregationError, FedError
from common.geometry import differences, finite_length
from common.layout import Layout
from common.methods import Method
from common.types import LOSS, STEPS, ClientId, ClientUpdate, Vector
from common.wire.arrays import BUFFERS, WEIGHTS, Codec, refuse_non_finite
from common.wire.content import payload_bytes
from common.wire.messages import TrainReply, read_train_reply
from common.wire.reply_metrics import (
    SECONDS,
    START_SECONDS,
)
from server_app.round.buffer_checks import buffers_length, refuse_impossible_buffers
from server_app.round.error_reasons import reason_of, refusal_of
from server_app.round.update_limits import UPDATE, Lengths, UpdateLimits
from server_app.state.options import Options
from server_app.state.server_state import ServerState


def check_train_reply(
    message: Message,
    client: ClientId,
    state: ServerState[Any],
    *,
    method: Method[Any],
    codec: Codec,
    options: Options,
    server_round: int,
    most_examples: Mapping[ClientId, int],
) -> TrainReply:
    """Return the training reply of a client, checked except for its weights' numbers.

    Args:
        message: the reply.
        client: the client that got the order.
        state: state of the server before the round.
        method: the method with its settings.
        codec: how the model travels.
        options: the names of the records and of the weight.
        server_round: number of the round.
        most_examples: number of training samples on each client's card; no limit without a card.

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
    refuse_more_examples("training", reply.examples, most_examples.get(client))
    refuse_impossible_buffers(reply.buffers, state.buffers)
    expected = method.expected_payload(state.method)
    sizes = {name: len(vector) for name, vector in reply.client_payload.items()}
    if sizes != expected:
        raise AggregationError(
            f"{method.name} needs the vectors {dict(expected)} in the reply's config, "
            f"got {sizes}; only FedKeel's ClientApp sends them"
        )
    refuse_missing_metrics(method, client, reply)
    return reply


def refuse_more_examples(kind: str, examples: int, most: int | None) -> None:
    """Check that a client claims no more samples than its card says.

    Raises:
        AggregationError: it claims more. The message has both numbers.
    """
    if most is not None and examples > most:
        raise AggregationError(
            f"it reports {examples} {kind} samples, and its card says {most}; if its data have "
            "changed, resume the run, which reads new cards"
        )


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
        lengths: length of each vector of the replies that can be used, by client.
    """

    updates: list[ClientUpdate] = field(default_factory=list)
    contents: list[RecordDict] = field(default_factory=list)
    dropped: dict[ClientId, str] = field(default_factory=dict)
    bytes_up: dict[ClientId, int] = field(default_factory=dict)
    lengths: dict[ClientId, Lengths] = field(default_factory=dict)

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
    state: ServerState[Any],
    layout: Layout,
    limits: UpdateLimits,
) -> CheckedReplies:
    """Check every reply of a round.

    Args:
        replies: by client, sorted by client.
        read: `check_train_reply` with the arguments of the round.
        state: the state whose model the clients received.
        layout: layout of the model.
        limits: refuses updates that are too long.
    """
    checked = CheckedReplies()
    readable: dict[ClientId, TrainReply] = {}
    for client, message in replies.items():
        checked.bytes_up[client] = payload_bytes(message.content) if message.has_content() else 0
        try:
            readable[client] = read(message, client)
        except FedError as error:
            checked.dropped[client] = refusal_of(error)
    deltas, sizes = differences(state.weights, [reply.weights for reply in readable.values()])
    updates: dict[ClientId, ClientUpdate] = {}
    lengths: dict[ClientId, Lengths] = {}
    for (client, reply), delta, size in zip(readable.items(), deltas, sizes, strict=True):
        try:
            if isnan(size):
                refuse_non_finite(WEIGHTS, reply.weights, layout)
                raise AggregationError("its weights are too far from the model for float32 numbers")
        except FedError as error:
            checked.dropped[client] = refusal_of(error)
            continue
        updates[client] = update_of(client, reply, delta)
        vectors = {name: finite_length(vector) for name, vector in reply.client_payload.items()}
        moved = buffers_length(reply.buffers, state.buffers)
        lengths[client] = {UPDATE: size, **vectors, **({} if moved is None else {BUFFERS: moved})}
    checked.dropped |= limits.refusals(lengths)
    for client, update in updates.items():
        if client not in checked.dropped:
            checked.updates.append(update)
            checked.contents.append(replies[client].content)
            checked.lengths[client] = lengths[client]
    return checked
