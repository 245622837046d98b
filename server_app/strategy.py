"""MethodStrategy: a Flower Strategy around any method of `common.methods`.

The strategy is the shell: it samples, packs, checks replies one by one and measures. What a round
means is `next_state`, which is pure. A bad reply costs its own client the round and nobody else.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common.config import cohort_size
from common.errors import AggregationError, ConfigError, FedError
from common.layout import Layout
from common.malloc import keep_freed_memory
from common.methods import Method
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.live_state import LiveState
from common.runs.records import RoundRecord
from common.types import ClientId, Cohort, Step, Vector, by_client
from common.wire.arrays import Codec, NamedCodec
from common.wire.content import payload_bytes
from common.wire.messages import LR, ROUND, Order
from common.wire.reply_metrics import read_metrics
from server_app.options import Diagnose, Observer, Options
from server_app.round.client_registry import ReadyClients, clients_by_name, wait_for_clients
from server_app.round.messaging import LATE, ExchangeLimits, Messenger, Replies
from server_app.round.replies import (
    NO_COUNT,
    MetricsFn,
    check_replies,
    check_train_reply,
    config_of,
    examples_of,
    mean_metrics,
    personal_of,
    score_of,
)
from server_app.round.sampling import sample_clients
from server_app.round.stopwatch import Stopwatch
from server_app.state import ServerState, evaluated_weights, next_state

logger = logging.getLogger("flwr")
T = TypeVar("T")
NOBODY_ASKED = "no client was asked to train"


@dataclass
class _Asked:
    """What went out in the round that is under way, and what is known of the replies."""

    clients: dict[int, ClientId] = field(default_factory=dict)  # by node
    bytes_down: Mapping[ClientId, int] = field(default_factory=dict)
    lr: float = 1.0
    enough: int | None = None
    seconds: dict[ClientId, float] = field(default_factory=dict)
    missing: dict[ClientId, str] = field(default_factory=dict)
    again: list[ClientId] = field(default_factory=list)

    @property
    def cohort(self) -> list[ClientId]:
        """Who was asked, sorted."""
        return sorted(set(self.clients.values()), key=by_client)


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
        registry: which node is which client, asked for at every round and while it goes on.
        expected: names of clients that should be there, for the message when they are not.
        observer: sees each round.
        diagnose: looks at the updates of each round that changed the model; changes nothing.
        store_state: returns an equal state that is kept in the new one's place.
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
        registry: Callable[[Grid], ReadyClients] = clients_by_name,
        expected: tuple[ClientId, ...] = (),
        observer: Observer | None = None,
        diagnose: Diagnose | None = None,
        store_state: Callable[[ServerState[Any]], ServerState[Any]] | None = None,
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
    ) -> None:
        for name, value in {"local_lr": local_lr, "registry": registry}.items():
            if value is not None and not callable(value):
                raise ConfigError(f"{name} must be a function, not {value!r}")
        self.method = method
        self.options = options or Options()
        self.codec = codec
        self.buffers = buffers
        self.local_lr = local_lr
        self.registry = registry
        self.expected = expected
        self._roster = ReadyClients({})
        self.observer = observer
        self.diagnose = diagnose
        self.store_state = store_state or (lambda state: state)
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.state: ServerState[Any] | None = None
        self.record: RoundRecord | None = None  # of the newest round
        self._asked = _Asked()
        self._post = Messenger()
        self._size = 0  # clients of the federation
        self._timeout = 0.0  # of a round, seconds; 0 outside of our own loop
        self._rounds = 0  # of the run; 0 there as well
        self._packed: ArrayRecord | None = None  # what self.state looks like on the wire
        self._void = 0
        self.recorded_round = 0  # the round of the newest state whose record the observer has

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
        spare = self.options.over_selection
        roster, clients = self._choose(
            grid, self.options.fraction_train, self.options.min_train_nodes, server_round, spare
        )
        lr = self.local_lr(server_round) if self.local_lr else _told_rate(config)
        digest, messages, sizes = self._codec.layout.digest, [], {}
        for client in clients:
            server_payload = self.method.server_payload(state.method, client)
            order = Order(server_round, lr, digest, server_payload, client, self._timeout)
            content = self._content(arrays, config, order)
            sizes[client] = payload_bytes(content)
            messages.append(Message(content, roster.nodes[client], MessageType.TRAIN))
        nodes = {roster.nodes[client]: client for client in clients}
        enough = max(1, len(clients) - spare) if spare else None
        self._asked = _Asked(nodes, sizes, lr, enough)
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
        by_node: dict[int, Message] = {}
        for reply in replies:
            by_node.setdefault(reply.metadata.src_node_id, reply)
        arrived = {c: by_node[node] for node, c in asked.clients.items() if node in by_node}
        judged = check_replies(
            {client: arrived[client] for client in asked.cohort if client in arrived},
            partial(
                check_train_reply,
                state=state,
                method=self.method,
                codec=self._codec,
                options=self.options,
                server_round=server_round,
            ),
            state.weights,
            self.layout,
        )
        updates = judged.updates
        silent = [client for client in asked.cohort if client not in arrived]
        dropped = {client: asked.missing.get(client, LATE) for client in silent} | judged.dropped
        for client, reason in dropped.items():
            logger.warning("round %d: client %s dropped: %s", server_round, client, reason)
        for update, content in zip(updates, judged.contents, strict=True):
            if odd := [k for k, v in read_metrics(content).items() if not isfinite(v)]:
                logger.warning(
                    "round %d: client %s reports no finite %s", server_round, update.client, odd
                )

        report: Mapping[str, Any] = {}
        diagnostics: Mapping[str, Any] = {}
        void = None
        if len(updates) < self.options.min_replies:
            void = f"{len(updates)} of {len(asked.cohort)} replies usable, "
            void += f"{self.options.min_replies} needed"
        else:
            cohort = Cohort(server_round, asked.lr, self._size, tuple(updates))
            try:
                following, step = next_state(
                    state, cohort, self.method, self.layout, self.options.server_lr
                )
                report = step.report
            except FedError as error:
                void = f"no step could be formed: {error}"
            else:
                self.state = self.store_state(following)
                diagnostics = self._diagnosed(state, cohort, step)
        self.record = RoundRecord(
            round=server_round,
            lr=asked.lr,
            cohort=asked.cohort,
            replied=[update.client for update in updates],
            dropped=dropped,
            void=void,
            train_loss=judged.train_loss,
            again=asked.again,
            late=self._post.take_late(),
            arrived=asked.seconds,
            worked=judged.worked,
            bytes_down=dict(asked.bytes_down),
            bytes_up=judged.bytes_up,
            method=dict(report),
            diagnostics=dict(diagnostics),
        )
        if void:
            self._refuse_too_many_void(server_round, void, dropped)
            return None, None
        self._void = 0
        self._packed = self._codec.pack(self._current.weights, self._current.buffers)
        metrics = mean_metrics(
            judged.contents,
            [update.examples for update in updates],
            self.options.weighted_by_key,
            self.train_metrics_aggr_fn,
        )
        return self._packed, metrics

    def _diagnosed(
        self, before: ServerState[Any], cohort: Cohort, step: Step[Any]
    ) -> Mapping[str, Any]:
        if self.diagnose is None:
            return {}
        try:
            return self.diagnose(before, cohort, step)
        except FedError as error:
            logger.warning("round %d has no diagnostics: %s", cohort.round, error)
            return {}

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
        return self._to_evaluate(server_round, arrays, config, grid, MessageType.EVALUATE)

    def _to_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, kind: str
    ) -> list[Message]:
        if self.options.fraction_evaluate == 0:
            self._asked = _Asked()
            return []
        state, weights = self._state_of(arrays), self.evaluated_weights
        if weights is not state.weights:
            arrays = self._codec.pack(weights, state.buffers)
        roster, clients = self._choose(
            grid, self.options.fraction_evaluate, self.options.min_evaluate_nodes, server_round
        )
        digest, lr = self._codec.layout.digest, self._asked.lr
        self._asked = _Asked({roster.nodes[client]: client for client in clients})
        return [
            Message(
                self._content(
                    arrays, config, Order(server_round, lr, digest, {}, client, self._timeout)
                ),
                node,
                kind,
            )
            for node, client in self._asked.clients.items()
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect every client's counts; undefined values are absent, not 0 and not NaN."""
        absent = dict.fromkeys(self._asked.cohort, LATE) | self._asked.missing
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
        asked = self._asked.cohort
        ordered = {client: scores[client] for client in asked if client in scores}
        if self.record is not None:
            metrics = {client: read_metrics(told[client][0]) for client in asked if client in told}
            counts = {client: count for client, (_, count) in told.items()}
            others = {client: why for client, why in absent.items() if client not in told}
            evaluation = replace(
                Evaluation.of(ordered, absent), personal=personal_of(metrics, counts, others)
            )
            self.record = replace(self.record, evaluation=evaluation)
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
        keep_freed_memory()
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        self._timeout, self._rounds = timeout, num_rounds
        result = Result()
        state = self._state_of(initial_arrays)
        self.recorded_round = state.round
        arrays = result.arrays = self._packed or initial_arrays
        self.summary()
        if evaluate_fn and state.round == 0 and (metrics := evaluate_fn(0, arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = metrics
        clock = Stopwatch()
        for server_round in range(state.round + 1, num_rounds + 1):
            messages = self.configure_train(server_round, arrays, train_config, grid)
            clock.lap("configure")
            replies = self._exchange(grid, messages, "training", server_round, num_rounds)
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
                answers = self._exchange(grid, asks, "evaluating", server_round, num_rounds)
                metrics = self.aggregate_evaluate(server_round, answers)
                clock.lap("evaluate")
                if metrics is not None:
                    result.evaluate_metrics_clientapp[server_round] = metrics
            if evaluate_fn and (metrics := evaluate_fn(server_round, arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
            self._note(clock)
            if self.observer and new_arrays:  # after the record, so that none is ever missing
                self.observer.save_state(self._current)
            clock.lap("checkpoint")  # counts in the next round's record
        return result

    def ask(
        self, grid: Grid, action: str, asks: Mapping[str, Any], read: Callable[[ConfigRecord], T]
    ) -> tuple[dict[ClientId, T], dict[ClientId, str]]:
        """Send the evaluated model to the clients with another question than how good it is.

        Args:
            grid: Flower's grid.
            action: which of the ClientApp's evaluate functions answers.
            asks: what goes into the order beside the model.
            read: reads the ConfigRecord of a reply; raises FedError if it cannot be used.

        Returns:
            What was read by client, and why each other client has no answer.

        Raises:
            AggregationError: too few clients are there.
        """
        arrays, number = self._packed, self._current.round
        assert arrays is not None, "start comes first"
        kind = f"{MessageType.EVALUATE}.{action}"
        orders = self._to_evaluate(number, arrays, ConfigRecord(dict(asks)), grid, kind)
        replies = self._exchange(grid, orders, "calibrating", number, self._rounds)
        missing = dict.fromkeys(self._asked.cohort, LATE) | self._asked.missing
        answers: dict[ClientId, T] = {}
        heard = {self._asked.clients[reply.metadata.src_node_id]: reply for reply in replies}
        for client in sorted(heard, key=by_client):
            try:
                answers[client] = read(config_of(heard[client]))
                del missing[client]
            except FedError as error:
                missing[client] = str(error)
        return answers, missing

    def _exchange(
        self,
        grid: Grid,
        messages: Iterable[Message],
        phase: str,
        server_round: int,
        rounds: int,
    ) -> list[Message]:
        """Send the orders, wait for the replies, and keep what is known of those that lack."""
        kinds, asked = {message.metadata.message_type for message in messages}, self._asked
        if not kinds:
            return []
        since = time.time()

        def watch(answers: Replies) -> None:
            roster = self._roster
            self._show(
                LiveState(
                    phase,
                    server_round,
                    rounds,
                    since,
                    since + self._timeout,
                    ready=roster.clients,
                    refused=dict(roster.refused),
                    asked=asked.cohort,
                    answered=dict(answers.seconds),
                    again=list(answers.again),
                    missing=dict(answers.missing),
                    late=dict(self._post.late),
                )
            )

        answers = self._post.exchange(
            grid,
            kinds.pop(),
            {asked.clients[m.metadata.dst_node_id]: m.content for m in messages},
            self._look,
            ExchangeLimits(
                self._timeout, asked.enough, self.options.retries, self.options.patience
            ),
            round=server_round,
            watch=watch,
        )
        for client, reply in answers.replies.items():  # it may have moved to another node
            asked.clients[reply.metadata.src_node_id] = client
        self._asked = replace(
            asked, seconds=answers.seconds, missing=answers.missing, again=answers.again
        )
        return list(answers.replies.values())

    def _look(self, grid: Grid) -> ReadyClients:
        """Ask who is there now."""
        self._roster = self.registry(grid)
        return self._roster

    def _show(self, live: LiveState) -> None:
        if self.observer:
            self.observer.show_live(live)

    def _note(self, clock: Stopwatch) -> None:
        if self.observer and self.record:
            self.record = replace(self.record, seconds=clock.take())
            self.observer.save_record(self.record)
            self.recorded_round = self._current.round

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
            self.state = self.store_state(self.state)
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

    @property
    def evaluated_weights(self) -> Vector:
        """The model that is evaluated and kept [d]."""
        return evaluated_weights(self._current, self.method, self.options.server_lr)

    def _choose(
        self, grid: Grid, fraction: float, least: int, server_round: int, spare: int = 0
    ) -> tuple[ReadyClients, list[ClientId]]:
        if fraction == 0:
            return ReadyClients({}), []
        options, since = self.options, time.time()
        wanted = max(options.min_available_nodes, least)

        def look(grid: Grid) -> ReadyClients:
            roster = self._look(grid)
            timeout = options.start_timeout
            self._show(
                LiveState.waiting(
                    roster.clients, roster.refused, server_round, self._rounds, since, timeout
                )
            )
            return roster

        roster = wait_for_clients(
            grid, look, wanted, options.start_timeout, logger.info, self.expected
        )
        self._size = max(options.clients, len(roster.nodes))
        size = max(cohort_size(fraction, self._size), least) + spare
        return roster, sample_clients(roster.clients, size, seed=options.seed, round=server_round)

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
