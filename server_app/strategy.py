"""MethodStrategy: a Flower Strategy around any method of `common.methods`.

The strategy is the shell: it samples, packs, checks replies one by one and measures. What a round
means is `next_state`, which is pure. A bad reply costs its own client the round and nobody else.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common.config import cohort_size
from common.errors import AggregationError, ConfigError, FedError
from common.layout import Layout
from common.methods import Method
from common.types import ClientId, ClientUpdate, Cohort
from common.wire import (
    LOSS,
    LR,
    ROUND,
    Codec,
    NamedCodec,
    Order,
    payload_bytes,
    read_metrics,
)
from server_app.cohort import choose
from server_app.options import Observer, Options
from server_app.records import ClientScore, Evaluation, RoundRecord
from server_app.replies import (
    NO_COUNT,
    MetricsFn,
    examples_of,
    mean_metrics,
    score_of,
    update_of,
)
from server_app.roster import Roster, by_name, wait_for_nodes
from server_app.state import ServerState, next_state

logger = logging.getLogger("flwr")
NOBODY_ASKED = "no client was asked to train"


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
        codec: how the model travels, when clients are ours and take one flat vector; None for
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
        for name, value in {"local_lr": local_lr, "roster": roster}.items():
            if value is not None and not callable(value):
                raise ConfigError(f"{name} must be a function, not {value!r}")
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
        lr = self.local_lr(server_round) if self.local_lr else _told_rate(config)
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
        state, asked = self._current, self._asked
        if not asked.clients:  # fraction_train is 0: only evaluation is wanted
            self.record = RoundRecord(server_round, asked.lr, [], [], void=NOBODY_ASKED)
            return None, None
        updates: list[ClientUpdate] = []
        contents: list[RecordDict] = []
        dropped: dict[ClientId, str] = {}
        bytes_up: dict[ClientId, int] = {}
        arrived: dict[int, Message] = {}
        for reply in replies:
            arrived.setdefault(reply.metadata.src_node_id, reply)
        for node, client in asked.clients.items():  # in the clients' order, not of arrival
            if node not in arrived:
                dropped[client] = "no reply within the round's deadline"
                continue
            reply = arrived[node]
            try:
                update = update_of(
                    reply,
                    client,
                    state,
                    method=self.method,
                    codec=self._codec,
                    options=self.options,
                    server_round=server_round,
                )
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
        metrics = mean_metrics(
            contents,
            [update.examples for update in updates],
            self.options.weighted_by_key,
            self.train_metrics_aggr_fn,
        )
        return self._packed, metrics

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
                examples = examples_of(reply, self.options.weighted_by_key)
                score = score_of(read_metrics(reply.content), examples)
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
        return mean_metrics(
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
        clock = _Clock()
        for server_round in range(state.round + 1, num_rounds + 1):
            messages = self.configure_train(server_round, arrays, train_config, grid)
            clock.lap("configure")
            replies = list(grid.send_and_receive(messages, timeout=timeout))
            clock.lap("train")
            try:
                new_arrays, metrics = self.aggregate_train(server_round, replies)
            except AggregationError:
                self._note(clock)
                raise
            clock.lap("aggregate")
            del messages, replies
            arrays = result.arrays = new_arrays or arrays
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
            self._note(clock)
            if self.observer and new_arrays:  # after the record, so that none is ever missing
                self.observer.keep(self._current)
            clock.lap("checkpoint")  # counts in the next round's record
        return result

    def _note(self, clock: "_Clock") -> None:
        if self.observer and self.record:
            self.record = replace(self.record, seconds=clock.take())
            self.observer.note(self.record)

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


def _told_rate(config: ConfigRecord) -> float:
    """Return the learning rate in somebody's train_config; 1 if it says none."""
    lr = config.get(LR)
    return float(lr) if isinstance(lr, int | float) and lr > 0 else 1.0


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, {}
        return taken
