"""MethodStrategy: a Flower Strategy around any method of `common.methods`.

The strategy adapts Flower's four hooks to the parts of a round: `RoundExchange` sends messages,
`Training` forms the next state, and `RoundEvaluation` collects scores. A bad reply is dropped, and
the other clients' replies are used.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common.errors import ConfigError
from common.layout import Layout
from common.malloc import keep_freed_memory
from common.methods import Method
from common.runs.live_state import LiveState
from common.runs.records import RoundRecord
from common.types import ClientId, Vector
from common.wire.arrays import Codec
from common.wire.messages import LR, Order
from server_app.round.evaluation import RoundEvaluation
from server_app.round.evaluation_replies import MetricsFn, mean_metrics
from server_app.round.order_content import order_content
from server_app.round.ready_clients import ReadyClients, clients_by_name
from server_app.round.round_exchange import RoundExchange
from server_app.round.round_loop import EvaluateFn, RoundLoop
from server_app.round.stopwatch import Stopwatch
from server_app.round.training import Training
from server_app.state.options import Diagnose, Observer, Options
from server_app.state.server_model import ServerModel, StoreState
from server_app.state.server_state import ServerState

logger = logging.getLogger("flwr")
T = TypeVar("T")


class MethodStrategy(Strategy):
    """One federated method as a Flower Strategy, see `server_app.strategies` for the ready ones.

    Args:
        method: the method with its settings.
        options: how rounds run.
        codec: how the model travels to FedKeel's clients, as one flat vector. With None, ordinary
            Flower clients get and return named arrays.
        buffers: names of arrays that are not trained, for ordinary clients. The default is
            BatchNorm's statistics and the arrays of whole numbers.
        local_lr: returns the local learning rate of a round, for the orders. The default
            is the "lr" of train_config, or 1 without one.
        registry: returns the clients that are ready. Called in every round and while waiting.
        expected: names of the clients that should connect, for the message when they do not.
        observer: sees each round.
        diagnose: diagnostics of the rounds that change the model. They change no result.
        store_state: returns an equal state that replaces each new state.
        train_metrics_aggr_fn, evaluate_metrics_aggr_fn: as in Flower's FedAvg.
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
        store_state: StoreState | None = None,
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
    ) -> None:
        for name, value in {"local_lr": local_lr, "registry": registry}.items():
            if value is not None and not callable(value):
                raise ConfigError(f"{name} must be a function, not {value!r}")
        self.method = method
        self.options = options or Options()
        self.buffers = buffers
        self.local_lr = local_lr
        self.observer = observer
        self.diagnose = diagnose
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.record: RoundRecord | None = None  # of the newest round
        self.recorded_round = 0  # round of the newest state whose record the observer has
        self.model = ServerModel(method, self.options.server_lr, codec, buffers, store_state)
        self.exchange = RoundExchange(self.options, registry, expected, self._show_live)
        self.training = Training(method, self.options, self.model)
        self.evaluation = RoundEvaluation(self.options, self.exchange, self.model)

    def summary(self) -> None:
        """Log the method and how rounds run."""
        logger.info("\t├──> %s (%s)", self.method, self.method.source)
        logger.info("\t└──> %s", self.options)

    @property
    def state(self) -> ServerState[Any] | None:
        """The state after the newest round, None before the first model."""
        return self.model.state

    @state.setter
    def state(self, state: ServerState[Any] | None) -> None:
        self.model.state = state

    @property
    def layout(self) -> Layout:
        """The layout of the model."""
        return self.model.layout

    @property
    def evaluated_weights(self) -> Vector:
        """The weights to evaluate and to save [d]."""
        return self.model.evaluated_weights

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample the clients of the round and return an order to train for each."""
        state = self.model.load(arrays)
        options, exchange, spare = self.options, self.exchange, self.options.over_selection
        ready, clients = exchange.sample(
            grid, options.fraction_train, options.min_train_nodes, server_round, spare
        )
        lr = self.local_lr(server_round) if self.local_lr else _configured_lr(config)
        vectors, contents = self.method.expected_payload(state.method), {}
        for client in clients:
            payload = self.method.server_payload(state.method, client)
            order = Order(server_round, lr, self.layout.digest, payload, client, exchange.timeout)
            contents[client] = order_content(arrays, config, order, options, has_lr=self.sets_lr)
        enough = max(1, len(clients) - spare) if spare else None
        return exchange.prepare(
            ready, contents, MessageType.TRAIN, lr=lr, enough=enough, vectors=vectors
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check every reply and form the next state from those that can be used.

        Returns:
            The new model and the weighted mean of the metrics; (None, None) for a void round,
            which leaves the model unchanged.

        Raises:
            AggregationError: there are `max_void_rounds` void rounds in a row.
        """
        by_client = self.exchange.by_client(replies)
        self.record, checked = self.training.aggregate(
            server_round, self.exchange, by_client, self.diagnose
        )
        self.training.count_void(self.record)
        if self.record.void:
            return None, None
        metrics = mean_metrics(
            checked.contents,
            [update.examples for update in checked.updates],
            self.options.weighted_by_key,
            self.train_metrics_aggr_fn,
        )
        return self.model.pack(), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return an order to evaluate for each sampled client."""
        return self.evaluation.orders(server_round, arrays, config, grid, has_lr=self.sets_lr)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add the clients' scores to the round's record. Return the mean of their metrics."""
        if not self.exchange.sent.clients:
            return None
        by_client = self.exchange.by_client(replies)
        evaluation, metrics = self.evaluation.aggregate(by_client, self.evaluate_metrics_aggr_fn)
        if self.record is not None:
            self.record = replace(self.record, evaluation=evaluation)
        return metrics

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds state.round + 1 to `num_rounds`. Arguments as in Flower's Strategy.start.

        Unlike Flower's loop it resumes from a restored state, evaluates every `eval_every` rounds
        and after the last one, and calls the observer after each round.
        """
        keep_freed_memory()
        self.exchange.timeout, self.exchange.rounds = timeout, num_rounds
        self.recorded_round = self.model.load(initial_arrays).round
        self.summary()
        loop = RoundLoop(
            self,
            self.exchange,
            grid,
            train_config or ConfigRecord(),
            evaluate_config or ConfigRecord(),
            evaluate_fn,
            self.options.eval_every,
            save_record=self._save_record,
            save_state=self._save_state,
        )
        arrays = self.model.packed or initial_arrays
        return loop.run(arrays, self.recorded_round + 1, num_rounds)

    def query(
        self, grid: Grid, action: str, values: Mapping[str, Any], read: Callable[[ConfigRecord], T]
    ) -> tuple[dict[ClientId, T], dict[ClientId, str]]:
        """Send the evaluated model to clients for another action, see `RoundEvaluation.query`."""
        return self.evaluation.query(grid, action, values, read, has_lr=self.sets_lr)

    @property
    def sets_lr(self) -> bool:
        """Whether the server sets the local learning rate of the clients."""
        return self.local_lr is not None

    def _show_live(self, live: LiveState) -> None:
        if self.observer:
            self.observer.show_live(live)

    def _save_record(self, stopwatch: Stopwatch) -> None:
        if self.observer and self.record:
            self.record = replace(self.record, seconds=stopwatch.take())
            self.observer.save_record(self.record)
            self.recorded_round = self.model.current_state.round

    def _save_state(self) -> None:
        if self.observer:
            self.observer.save_state(self.model.current_state)


def _configured_lr(config: ConfigRecord) -> float:
    """Return the learning rate in a train_config; 1 if it has none."""
    lr = config.get(LR)
    return float(lr) if isinstance(lr, int | float) and lr > 0 else 1.0
