"""MethodStrategy: a Flower Strategy around any method of `common.methods`.

The strategy is the shell: it samples, packs, checks replies one by one and measures. What a round
means is `next_state`, which is pure. A bad reply costs its own client the round and nobody else.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common.config import cohort_size
from common.errors import AggregationError, FedError
from common.layout import Layout
from common.methods import Method
from common.settings import Settings, setting
from common.types import ClientId, ClientUpdate, Cohort, Vector
from common.wire import (
    ARRAYS,
    CONFIG,
    CORRECT,
    EXAMPLES,
    LOSS,
    LOSS_SUM,
    LR,
    ROUND,
    Codec,
    NamedCodec,
    Order,
    TrainReply,
    payload_bytes,
    plain_metrics,
    read_metrics,
    read_train_reply,
)
from server_app.cohort import choose
from server_app.reasons import reason_of
from server_app.records import ClientScore, Evaluation, RoundRecord
from server_app.roster import Roster, by_name, wait_for_nodes
from server_app.state import ServerState, next_state

logger = logging.getLogger("flwr")
MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
ACCURACY = ("accuracy", "eval_acc")  # what ordinary clients report instead of a count
NO_COUNT = f'neither "{CORRECT}" nor "{ACCURACY[0]}" in the reply\'s metrics'


@dataclass(frozen=True)
class Options(Settings):
    """How rounds are run around a method; the first eight are Flower's own, with its meaning."""

    fraction_train: float = setting(1.0, "share of the clients that train", low=0, high=1)
    fraction_evaluate: float = setting(1.0, "share of the clients that evaluate", low=0, high=1)
    min_train_nodes: int = setting(1, "fewest clients asked to train", low=0)
    min_evaluate_nodes: int = setting(1, "fewest clients asked to evaluate", low=0)
    min_available_nodes: int = setting(1, "clients to wait for before a round", low=1)
    weighted_by_key: str = setting(EXAMPLES, "metric that weighs a reply")
    arrayrecord_key: str = setting(ARRAYS, "name of the model's record")
    configrecord_key: str = setting(CONFIG, "name of the config's record")
    server_lr: float = setting(1.0, "w <- w - server_lr * direction", low=0, open_low=True)
    seed: int = setting(0, "address of the cohorts", low=0)
    eval_every: int = setting(1, "rounds between evaluations; 0: the last round only", low=0)
    min_replies: int = setting(1, "fewer usable replies make a round void", low=1)
    max_void_rounds: int = setting(3, "void rounds in a row after which the run stops", low=1)
    start_timeout: float = setting(120.0, "seconds to wait for clients", low=0)


class Observer(Protocol):
    """Who wants to see rounds as they happen: records, checkpoints."""

    def keep(self, state: ServerState[Any]) -> None:
        """A round changed the state."""

    def note(self, record: RoundRecord) -> None:
        """A round is over, evaluated or not."""


@dataclass
class _Asked:
    """What went out in the round that is under way."""

    clients: Mapping[int, ClientId] = field(default_factory=dict)  # by node
    bytes_down: Mapping[ClientId, int] = field(default_factory=dict)
    lr: float = 1.0


class MethodStrategy(Strategy):
    """One federated method as a Flower Strategy; see `server_app.strategies` for the ready ones.

    Args:
        method: the method with its settings.
        options: how rounds are run.
        layout: the model's layout, when clients are ours and take one flat vector; None for
            ordinary Flower clients, which get and return named arrays.
        buffers: names of arrays that are not trained, for ordinary clients; None guesses
            BatchNorm's statistics and whole-number arrays.
        local_lr: the local learning rate of a round, told to the clients; without it the
            train_config's "lr" counts, and else 1.
        roster: which node is which client, asked for at every round.
        observer: sees each round.
        train_metrics_aggr_fn: as in Flower's FedAvg.
        evaluate_metrics_aggr_fn: as in Flower's FedAvg.
    """

    def __init__(
        self,
        method: Method[Any],
        options: Options | None = None,
        *,
        codec: Codec | None = None,
        buffers: tuple[str, ...] | None = None,
        local_lr: Callable[[int], float] | None = None,
        roster: Callable[[Grid], Roster] = by_name,
        observer: Observer | None = None,
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
    ) -> None:
        self.method = method
        self.options = options or Options()
        self.codec = codec
        self.buffers = buffers
        self.local_lr = local_lr
        self.roster = roster
        self.observer = observer
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.state: ServerState[Any] | None = None
        self.record: RoundRecord | None = None  # of the newest round
        self._asked = _Asked()
        self._clients: list[ClientId] = []
        self._packed: ArrayRecord | None = None  # what self.state looks like on the wire
        self._void = 0

    def summary(self) -> None:
        """Log the method and how rounds are run."""
        logger.info("\t├──> %s (%s)", self.method, self.method.source)
        logger.info("\t└──> %s", self.options)

    # ---------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the round's cohort and pack one order for each of its clients."""
        state = self._state_of(arrays)
        roster, clients = self._choose(
            grid, self.options.fraction_train, self.options.min_train_nodes, server_round
        )
        lr = self.local_lr(server_round) if self.local_lr else config.get(LR, 1.0)
        lr = float(lr) if isinstance(lr, int | float) and lr > 0 else 1.0
        messages, sizes = [], {}
        for client in clients:
            order = Order(
                server_round, lr, self._codec.layout.digest, self.method.brief(state.method, client)
            )
            content = self._content(arrays, config, order)
            sizes[client] = payload_bytes(content)
            messages.append(Message(content, roster.nodes[client], MessageType.TRAIN))
        nodes = {roster.nodes[client]: client for client in clients}
        self._asked = _Asked(nodes, sizes, lr)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check every reply, form the next state from the good ones, say why others are not used.

        Returns:
            The new model and the metrics' weighted mean; (None, None) for a void round, which
            leaves the model as it was.

        Raises:
            AggregationError: `max_void_rounds` void rounds in a row.
        """
        state = self._current
        asked = self._asked
        updates: list[ClientUpdate] = []
        contents: list[RecordDict] = []
        dropped: dict[ClientId, str] = {}
        bytes_up: dict[ClientId, int] = {}
        for reply in sorted(replies, key=lambda message: message.metadata.src_node_id):
            client = asked.clients.get(reply.metadata.src_node_id)
            if client is None or client in bytes_up:
                continue
            try:
                update = self._update_of(reply, client, state, server_round)
            except FedError as error:
                dropped[client] = str(error)
                continue
            finally:
                bytes_up[client] = payload_bytes(reply.content) if reply.has_content() else 0
            if odd := [k for k, v in read_metrics(reply.content).items() if not isfinite(v)]:
                logger.warning(
                    "round %d: client %s reports no finite %s", server_round, client, odd
                )
            updates.append(update)
            contents.append(reply.content)
        for client in asked.clients.values():
            if client not in bytes_up:
                dropped[client] = "no reply within the round's deadline"
        for client, reason in dropped.items():
            logger.warning("round %d: client %s dropped: %s", server_round, client, reason)

        report: Mapping[str, Any] = {}
        void = None
        if len(updates) < self.options.min_replies:
            void = f"{len(updates)} of {len(asked.clients)} replies usable, "
            void += f"{self.options.min_replies} needed"
        else:
            cohort = Cohort(server_round, asked.lr, len(self._clients), tuple(updates))
            try:
                self.state, step = next_state(state, cohort, self.method, self.options.server_lr)
                report = step.report
            except FedError as error:
                void = f"no step could be formed: {error}"
        losses = [(u.metrics[LOSS], u.examples) for u in updates if LOSS in u.metrics]
        total = sum(examples for _, examples in losses)
        self.record = RoundRecord(
            round=server_round,
            lr=asked.lr,
            cohort=list(asked.clients.values()),
            replied=[update.client for update in updates],
            dropped=dropped,
            void=void,
            train_loss=sum(loss * n for loss, n in losses) / total if total else None,
            bytes_down=dict(asked.bytes_down),
            bytes_up=bytes_up,
            method=dict(report),
        )
        if void:
            self._refuse_too_many_void(server_round, void, dropped)
            return None, None
        self._void = 0
        self._packed = self._codec.pack(self._current.weights, self._current.buffers)
        return self._packed, self._mean_metrics(contents, updates, self.train_metrics_aggr_fn)

    def _refuse_too_many_void(
        self, server_round: int, void: str, dropped: Mapping[ClientId, str]
    ) -> None:
        self._void += 1
        logger.warning("round %d is void: %s", server_round, void)
        if self._void >= self.options.max_void_rounds:
            why = "; ".join(f"{client}: {reason}" for client, reason in list(dropped.items())[:3])
            raise AggregationError(
                f"{self._void} void rounds in a row, the last one because {void}"
                f"{f' ({why})' if why else ''}; the model is that of round {self._current.round}"
            )

    def _update_of(
        self, message: Message, client: ClientId, state: ServerState[Any], server_round: int
    ) -> ClientUpdate:
        reply = self._reply_of(message, server_round)
        if reply.client not in ("", client):
            raise AggregationError(f'the reply says it is from client "{reply.client}"')
        with np.errstate(over="ignore"):
            delta: Vector = state.weights - reply.weights
        if not np.isfinite(delta).all():
            raise AggregationError("its weights are too far from the model for float32 numbers")
        return ClientUpdate(
            client=client,
            examples=reply.examples,
            steps=reply.steps,
            lr_sum=reply.lr_sum,
            delta=delta,
            buffers=reply.buffers,
            extras=self._extras_of(reply, client, state),
            metrics=reply.metrics,
        )

    def _reply_of(self, message: Message, server_round: int) -> TrainReply:
        if message.has_error():
            raise AggregationError(reason_of(message.error))
        return read_train_reply(
            message.content,
            self._codec,
            server_round,
            arrays_key=self.options.arrayrecord_key,
            weight_key=self.options.weighted_by_key,
        )

    def _extras_of(
        self, reply: TrainReply, client: ClientId, state: ServerState[Any]
    ) -> Mapping[str, Vector]:
        expected = self.method.expects(state.method)
        sizes = {name: len(vector) for name, vector in reply.extras.items()}
        if sizes != expected:
            raise AggregationError(
                f"{self.method.name} needs the vectors {dict(expected)} in the reply's config, "
                f"got {sizes}; only FedKeel's ClientApp sends them"
            )
        return reply.extras

    # ---------------------------------------------------------------- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients to evaluate the model."""
        if self.options.fraction_evaluate == 0:
            self._asked = _Asked()
            return []
        self._state_of(arrays)
        roster, clients = self._choose(
            grid, self.options.fraction_evaluate, self.options.min_evaluate_nodes, server_round
        )
        order = Order(server_round, self._asked.lr, self._codec.layout.digest)
        content = self._content(arrays, config, order)
        self._asked = _Asked({roster.nodes[client]: client for client in clients})
        return [Message(content, node, MessageType.EVALUATE) for node in self._asked.clients]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect every client's counts; undefined values are absent, not 0 and not NaN."""
        absent = dict.fromkeys(self._asked.clients.values(), "no reply within the deadline")
        scores: dict[ClientId, ClientScore] = {}
        told: dict[ClientId, tuple[RecordDict, int]] = {}
        for reply in replies:
            client = self._asked.clients.get(reply.metadata.src_node_id)
            if client is None or client in told:
                continue
            try:
                examples = _examples_of(reply, self.options.weighted_by_key)
                score = _score_of(read_metrics(reply.content), examples)
            except FedError as error:
                absent[client] = str(error)
                continue
            told[client] = reply.content, examples
            if score is None:
                absent[client] = NO_COUNT
            else:
                scores[client] = score
                del absent[client]
        if not self._asked.clients:
            return None
        asked = self._asked.clients.values()
        ordered = {client: scores[client] for client in asked if client in scores}
        if self.record is not None:
            self.record = replace(self.record, evaluation=Evaluation.of(ordered, absent))
        useful = [told[client] for client in asked if client in told and told[client][1]]
        return _mean_of(
            [content for content, _ in useful],
            [examples for _, examples in useful],
            self.options.weighted_by_key,
            self.evaluate_metrics_aggr_fn,
        )

    # ---------------------------------------------------------------- the loop

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds state.round + 1 to `num_rounds`; arguments as in Flower's Strategy.start.

        Unlike Flower's loop it goes on from a restored state, evaluates every `eval_every` rounds
        and after the last one, and tells the observer of each round.
        """
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        result = Result()
        state = self._state_of(initial_arrays)
        arrays = result.arrays = self._packed or initial_arrays
        self.summary()
        if evaluate_fn and state.round == 0 and (metrics := evaluate_fn(0, arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = metrics
        for server_round in range(state.round + 1, num_rounds + 1):
            clock = _Clock()
            messages = self.configure_train(server_round, arrays, train_config, grid)
            clock.lap("configure")
            replies = list(grid.send_and_receive(messages, timeout=timeout))
            clock.lap("train")
            new_arrays, metrics = self.aggregate_train(server_round, replies)
            clock.lap("aggregate")
            del messages, replies
            if new_arrays is not None:
                arrays = result.arrays = new_arrays
                if self.observer:
                    self.observer.keep(self._current)
                clock.lap("checkpoint")
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            every = self.options.eval_every
            if server_round == num_rounds or (every and server_round % every == 0):
                asks = self.configure_evaluate(server_round, arrays, evaluate_config, grid)
                answers = grid.send_and_receive(asks, timeout=timeout)
                metrics = self.aggregate_evaluate(server_round, answers)
                clock.lap("evaluate")
                if metrics is not None:
                    result.evaluate_metrics_clientapp[server_round] = metrics
            if evaluate_fn and (metrics := evaluate_fn(server_round, arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
            if self.observer and self.record:
                self.record = replace(self.record, seconds=clock.seconds)
                self.observer.note(self.record)
        return result

    # ---------------------------------------------------------------- parts

    @property
    def _codec(self) -> Codec:
        assert self.codec is not None, "configure_train comes first"
        return self.codec

    @property
    def _current(self) -> ServerState[Any]:
        assert self.state is not None, "configure_train comes first"
        return self.state

    def _state_of(self, arrays: ArrayRecord) -> ServerState[Any]:
        """Return the state whose model is `arrays`, which may have been changed by the caller."""
        codec: Codec = self.codec or NamedCodec.of(arrays, self.buffers)
        self.codec = codec
        if self.state is not None and self._packed is None:  # restored from a checkpoint
            self._packed = codec.pack(self.state.weights, self.state.buffers)
        elif self.state is None or arrays is not self._packed:
            weights, buffers = codec.unpack(arrays)
            done = self.state or ServerState.first(codec.layout, weights, buffers, self.method)
            self.state = ServerState(done.round, weights, buffers, done.method)
            self._packed = arrays
        return self.state

    @property
    def layout(self) -> Layout:
        """The layout of the model being trained."""
        return self._codec.layout

    def _choose(
        self, grid: Grid, fraction: float, least: int, server_round: int
    ) -> tuple[Roster, list[ClientId]]:
        if fraction == 0:
            return Roster({}), []
        wait_for_nodes(
            grid,
            max(self.options.min_available_nodes, least),
            self.options.start_timeout,
            logger.info,
        )
        roster = self.roster(grid)
        self._clients = roster.clients
        size = max(cohort_size(fraction, len(self._clients)), least)
        seed = self.options.seed
        return roster, choose(self._clients, size, seed=seed, round=server_round)

    def _content(self, arrays: ArrayRecord, config: ConfigRecord, order: Order) -> RecordDict:
        own = ConfigRecord({**order.config(), **config, ROUND: order.round})
        if self.local_lr:
            own[LR] = order.lr
        elif LR not in config:  # an ordinary client knows its own, and must not find another here
            del own[LR]
        options = self.options
        return RecordDict({options.arrayrecord_key: arrays, options.configrecord_key: own})

    def _mean_metrics(
        self, contents: list[RecordDict], updates: list[ClientUpdate], aggregate: MetricsFn | None
    ) -> MetricRecord | None:
        weights = [update.examples for update in updates]
        return _mean_of(contents, weights, self.options.weighted_by_key, aggregate)


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


def _examples_of(reply: Message, weight_key: str) -> int:
    """Read on how many examples a client evaluated."""
    if reply.has_error():
        raise AggregationError(reason_of(reply.error))
    examples = read_metrics(reply.content).get(weight_key)
    if examples is None or not isfinite(examples) or examples < 0:
        raise AggregationError(f'no number "{weight_key}" of at least 0 in the reply\'s metrics')
    return int(examples)


def _score_of(metrics: Mapping[str, float], examples: int) -> ClientScore | None:
    """Read one client's counts; ordinary clients' accuracy is turned into one, if they tell it."""
    correct = metrics.get(CORRECT)
    shares = [metrics[key] for key in ACCURACY if isfinite(metrics.get(key, float("nan")))]
    if correct is None and shares:
        correct = round(shares[0] * examples)
    if correct is None and examples:
        return None
    correct = correct or 0
    if not 0 <= correct <= examples:
        raise AggregationError(f"{correct} correct answers of {examples} are impossible")
    loss_sum = metrics.get(LOSS_SUM)
    return ClientScore(examples, int(correct), None if loss_sum is None else float(loss_sum))


def _mean_of(
    contents: list[RecordDict],
    weights: list[int],
    weight_key: str,
    aggregate: MetricsFn | None,
) -> MetricRecord | None:
    """Average the metrics that clients report, each over the clients that have it."""
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
    return plain_metrics({key: total / count for key, (total, count) in sums.items()})
