"""Builders of layouts, cohorts, toy problems, and clients that answer real messages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp.grid.grid import NodeInfo
from numpy.testing import assert_array_equal

from common.data import Dataset
from common.layout import Layout, Tensor
from common.methods import Method
from common.rng import stream
from common.runs.records import RoundRecord
from common.types import LOSS, LOSS_BEFORE, ClientUpdate, Cohort, Vector
from common.wire.arrays import FlatCodec
from common.wire.content import ARRAYS, METRICS
from common.wire.messages import Order, TrainReply
from common.wire.reply_metrics import CORRECT, EXAMPLES
from server_app.round.ready_clients import ReadyClients
from server_app.round.sampling import sample_clients
from server_app.state.options import Options
from server_app.state.server_state import ServerState, next_state
from server_app.strategy import MethodStrategy

LR = 0.1
EXACT = {"rtol": 0, "atol": 1e-9}  # as near as the published numbers are given
TOY3 = LR * np.array([[2.0, 1.0], [1.0, 3.0], [-2.0, 1.0]])  # three clients, two conflict
TOY3_EXAMPLES, TOY3_LOSSES = (50, 30, 20), (0.5, 1.0, 2.0)
FIRST_NODE = 1001


# ---------------------------------------------------------------- values


def layout_of_size(size: int, buffers: tuple[Tensor, ...] = ()) -> Layout:
    """Return a layout of `size` weights, about a third of them (at least one) in the classifier."""
    head = max(1, size // 3)
    body = (Tensor("features.weight", (size - head,)),) if size > head else ()
    return Layout((*body, Tensor("classifier.weight", (head,))), buffers)


def compass(*degrees: float) -> Vector:
    """Return unit vectors at these angles [m, 2]."""
    angles = np.deg2rad(degrees)
    return np.column_stack([np.cos(angles), np.sin(angles)])


def cohort_of(
    deltas: Any,
    examples: Sequence[int] | None = None,
    *,
    round: int = 1,  # noqa: A002
    names: Sequence[str] | None = None,
    clients: int = 10,
    lr: float = LR,
    losses: Sequence[float] | None = None,
    **more: Any,
) -> Cohort:
    """Return clients "1", "2", ... (or `names`) with these displacements [m, d] and losses [m]."""
    rows = np.asarray(deltas)
    names = names or [str(k + 1) for k in range(len(rows))]
    sizes, told = examples or [1] * len(rows), losses or [1.0] * len(rows)
    return Cohort(
        round,
        lr,
        clients,
        tuple(
            ClientUpdate(name, size, 1, lr, row, metrics={LOSS: loss, LOSS_BEFORE: loss}, **more)
            for name, size, row, loss in zip(names, sizes, rows, told, strict=True)
        ),
    )


def arrays_in(value: Any) -> Iterator[Vector]:
    """Yield every array inside nested dataclasses, mappings and sequences, in order."""
    if isinstance(value, np.ndarray):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from arrays_in(getattr(value, item.name))
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from arrays_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from arrays_in(part)


def assert_same(one: Any, other: Any) -> None:
    """Assert that both values are equal to the last bit, with dtypes, shapes and order of keys."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert_array_equal(one, other, strict=True)
    elif is_dataclass(one):
        for item in fields(one):
            assert_same(getattr(one, item.name), getattr(other, item.name))
    elif isinstance(one, Mapping):
        assert list(one) == list(other)
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


# ---------------------------------------------------------------- toy problems, pure


@dataclass(frozen=True)
class Quadratic:
    """f(w) = 1/2 (w - a)^T diag(h) (w - a), with its exact gradient."""

    a: Vector
    h: Vector

    def gradient(self, w: Vector) -> Vector:
        return (self.h * (w - self.a)).astype(w.dtype)

    def value(self, w: Vector) -> float:
        return float(self.h @ (w.astype(np.float64) - self.a) ** 2) / 2


def told(client: str, problem: Quadratic, received: Vector) -> dict[str, float]:
    """Return the losses that a toy client reports: the true one before, a substitute after."""
    return {LOSS_BEFORE: problem.value(received), LOSS: 1.0 + int(client)}


QUAD2 = {
    "1": Quadratic(np.array([2.0, 0.0]), np.array([1.0, 2.0])),
    "2": Quadratic(np.array([0.0, 4.0]), np.array([3.0, 1.0])),
}


def most_remembered(method: Method[Any], clients: int) -> int:
    """Return the largest size in bytes of a history with 50 float32 numbers for each client.

    Cohorts of two alternate, so that they fill the window with different clients.
    """
    layout = layout_of_size(50)
    state, most = method.init(layout), 0
    for number in range(1, 20):
        names = [str((2 * number + k) % clients) for k in range(2)]
        cohort = cohort_of(np.ones((2, 50), np.float32), names=names, round=number)
        state = method.aggregate(cohort, state, layout).state
        most = max(most, state.seen.nbytes)
    return most


def bowls(clients: int, size: int, seed: int = 0) -> dict[str, Quadratic]:
    """Return a quadratic of `size` coordinates for each of the clients "0", "1", ..."""
    rng = stream(seed, "bowls", clients, size)
    shape = (clients, size)
    centres, steep = rng.normal(size=shape), rng.uniform(0.5, 3.0, shape)
    return {str(k): Quadratic(centres[k], steep[k]) for k in range(clients)}


def local_steps(
    method: Method[Any],
    server_payload: Mapping[str, Vector],
    layout: Layout,
    start: Vector,
    gradient: Callable[[Vector], Vector],
    *,
    lr: float = LR,
    steps: int = 2,
) -> tuple[Vector, Mapping[str, Vector]]:
    """Compute a client's half of a round in numpy; return its weights and its payload."""
    rule = method.local_rule(server_payload, layout)
    w, velocity = start.copy(), np.zeros_like(start)
    anchor = start if rule.anchor is None else rule.anchor
    for _ in range(steps):
        g = gradient(w) + start.dtype.type(rule.proximal_weight) * (w - anchor)
        for span, part in rule.block.pieces(rule.shift) if rule.shift is not None else ():
            g[span] += part
        for span in rule.block.outside(layout.size).spans if rule.momentum else ():
            velocity[span] = rule.momentum * velocity[span] + g[span]
            g[span] = velocity[span]
        w = w - start.dtype.type(lr) * g
    return w, method.client_payload(server_payload, layout, start, w, lr * steps)


def play(
    method: Method[Any],
    state: ServerState[Any],
    layout: Layout,
    problems: Mapping[str, Quadratic],
    cohorts: Iterable[Sequence[str]],
    *,
    server_lr: float = 1.0,
    examples: Callable[[str], int] = lambda client: 1,
    lr: float = LR,
    steps: int = 2,
) -> list[ServerState[Any]]:
    """Run both halves of a method without Flower; return the state after each cohort."""
    states = []
    for cohort in cohorts:
        updates = []
        for client in cohort:
            server_payload = {
                name: vector.astype(state.weights.dtype)  # the wire's, in a real round
                for name, vector in method.server_payload(state.method, client).items()
            }
            gradient = problems[client].gradient
            weights, client_payload = local_steps(
                method, server_payload, layout, state.weights, gradient, lr=lr, steps=steps
            )
            delta = state.weights - weights
            metrics = told(client, problems[client], state.weights)
            updates.append(
                ClientUpdate(
                    client,
                    examples(client),
                    steps,
                    lr * steps,
                    delta,
                    client_payload=client_payload,
                    metrics=metrics,
                )
            )
        whole = Cohort(state.round + 1, lr, len(problems), tuple(updates))
        state, _ = next_state(state, whole, method, layout, server_lr)
        states.append(state)
    return states


def drawn(clients: int, size: int, rounds: int, seed: int = 3) -> list[list[str]]:
    """Return `rounds` cohorts of `size` out of `clients`, for partial participation."""
    names = [str(k) for k in range(clients)]
    return [sample_clients(names, size, seed=seed, round=number + 1) for number in range(rounds)]


def begin(
    method: Method[Any], layout: Layout, weights: Any, dtype: Any = np.float64
) -> ServerState[Any]:
    """Return the state before round 1."""
    return ServerState.first(layout, np.asarray(weights, dtype), {}, method)


# ---------------------------------------------------------------- behind real messages


Tamper = Callable[[Message, RecordDict], Message | None]


def failing(reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION) -> Tamper:
    """Return a tamper that makes the reply an error."""
    return lambda order, _: Message(Error(code, reason), reply_to=order)


def silent(order: Message, content: RecordDict) -> None:
    """Never reply."""


def changed(change: Callable[[RecordDict], None]) -> Tamper:
    """Return a tamper that changes the reply's content before it is sent."""

    def tamper(order: Message, content: RecordDict) -> Message:
        change(content)
        return Message(content, reply_to=order)

    return tamper


class Federation:
    """A MethodStrategy and toy clients "0", "1", ... that answer its real messages.

    It is the grid as well. Client k has 10 * (k + 1) examples, a quadratic of its own,
    and takes two steps.
    """

    def __init__(
        self,
        method: Method[Any],
        *,
        clients: int = 5,
        size: int = 12,
        buffers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        values = {name: np.asarray(value) for name, value in (buffers or {}).items()}
        beside = tuple(Tensor(name, v.shape, v.dtype.name) for name, v in values.items())
        self.method = method
        self.layout = layout_of_size(size, beside)
        self.codec = FlatCodec(self.layout)
        self.problems = bowls(clients, size)
        self.nodes = {client: FIRST_NODE + int(client) for client in self.problems}
        self.strategy = MethodStrategy(
            method,
            Options(**options),
            codec=self.codec,
            local_lr=lambda _: LR,
            registry=lambda _: ReadyClients.of(self.nodes),
        )
        first = stream(0, "first", size).normal(size=size).astype(np.float32)
        self.arrays = self.codec.pack(first, values)

    @property
    def record(self) -> RoundRecord:
        """Return the record of the newest round."""
        assert self.strategy.record is not None
        return self.strategy.record

    def get_node_ids(self) -> list[int]:
        return list(self.nodes.values())

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.nodes.values()]

    @property
    def weights(self) -> Vector:
        """Return the global model of the next orders."""
        return self.codec.unpack(self.arrays)[0]

    def train_reply(self, order: Message) -> TrainReply:
        """Return the reply of an honest client."""
        read = Order.read(order.content, self.layout)
        received, buffers = self.codec.unpack(order.content[ARRAYS])
        client = str(order.metadata.dst_node_id - FIRST_NODE)
        gradient = self.problems[client].gradient
        weights, client_payload = local_steps(
            self.method, read.server_payload, self.layout, received, gradient, lr=read.lr
        )
        return TrainReply(
            client=client,
            round=read.round,
            weights=weights,
            buffers=buffers,
            examples=10 * (int(client) + 1),
            steps=2,
            lr_sum=2 * read.lr,
            client_payload=client_payload,
            metrics=told(client, self.problems[client], received),
        )

    def train(
        self, number: int, tampers: Mapping[str, Tamper] | None = None
    ) -> MetricRecord | None:
        """Play one round of training; `tampers` change the replies of clients."""
        orders = self.strategy.configure_train(number, self.arrays, ConfigRecord(), self)
        replies = self._replies(
            orders, lambda order: self.train_reply(order).record(self.codec), tampers or {}
        )
        arrays, metrics = self.strategy.aggregate_train(number, replies)
        self.arrays = self.arrays if arrays is None else arrays
        return metrics

    def evaluate(
        self, number: int, tampers: Mapping[str, Tamper] | None = None
    ) -> MetricRecord | None:
        """Play one evaluation in which every client classifies 5 of 10 examples correctly."""
        orders = self.strategy.configure_evaluate(number, self.arrays, ConfigRecord(), self)
        replies = self._replies(
            orders,
            lambda _: RecordDict({METRICS: MetricRecord({EXAMPLES: 10, CORRECT: 5})}),
            tampers or {},
        )
        return self.strategy.aggregate_evaluate(number, replies)

    def _replies(
        self,
        orders: Iterable[Message],
        answer: Callable[[Message], RecordDict],
        tampers: Mapping[str, Tamper],
    ) -> list[Message]:
        replies = []
        for order in orders:
            client = str(order.metadata.dst_node_id - FIRST_NODE)
            content = answer(order)
            tamper = tampers.get(client)
            replies.append(tamper(order, content) if tamper else Message(content, reply_to=order))
        return [reply for reply in replies if reply is not None]


# ---------------------------------------------------------------- pictures


def pictures(
    count: int, *, channels: int = 1, side: int = 4, classes: int = 3, seed: int = 0
) -> Dataset:
    """Return noise with a bright row that depends on the class, so that it can be learned."""
    rng = stream(seed, "pictures", count)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 128, (count, channels, side, side), dtype=np.uint8)
    images[np.arange(count), :, labels % side] += 100
    names = tuple(f"class {k}" for k in range(classes))
    return Dataset("noise", images, labels, names, count, (0.4,) * channels, (0.2,) * channels)
