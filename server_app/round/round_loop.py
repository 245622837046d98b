"""RoundLoop: calls Flower's hooks round by round."""

from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from common.errors import AggregationError
from server_app.round.round_exchange import RoundExchange
from server_app.round.stopwatch import Stopwatch

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class RoundLoop:
    """Runs the rounds of a strategy and measures them.

    Attributes:
        strategy: its four hooks are called.
        exchange: sends the messages of the hooks.
        grid: Flower's grid.
        train_config: goes into the orders to train.
        evaluate_config: goes into the orders to evaluate.
        evaluate_fn: evaluates the model on the server, as in Flower's FedAvg.
        eval_every: rounds between evaluations; 0 evaluates after the last round only.
        save_record: saves the record of the round, given its seconds by phase.
        save_state: saves the state of a round that changed the model.
        result: what the rounds so far add up to.
    """

    strategy: Strategy
    exchange: RoundExchange
    grid: Grid
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    eval_every: int
    save_record: Callable[[Stopwatch], None]
    save_state: Callable[[], None]
    result: Result = field(default_factory=Result)
    _stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def run(self, arrays: ArrayRecord, first: int, last: int) -> Result:
        """Run the rounds `first` to `last` from the model `arrays`."""
        self.result.arrays = arrays
        if first == 1:
            self._evaluate_on_server(0)
        self._stopwatch = Stopwatch()
        for server_round in range(first, last + 1):
            is_changed = self._train(server_round)
            if server_round == last or (self.eval_every and server_round % self.eval_every == 0):
                self._evaluate(server_round)
            self._evaluate_on_server(server_round)
            self.save_record(self._stopwatch)
            if is_changed:  # after the record, so that every saved state has one
                self.save_state()
            self._stopwatch.lap("checkpoint")  # part of the next round's record
        return self.result

    def _train(self, server_round: int) -> bool:
        """Return whether the round changed the model."""
        strategy, result, stopwatch = self.strategy, self.result, self._stopwatch
        orders = strategy.configure_train(server_round, result.arrays, self.train_config, self.grid)
        stopwatch.lap("configure")
        replies = self.exchange.send(self.grid, orders, "training", server_round)
        stopwatch.lap("train")
        try:
            arrays, metrics = strategy.aggregate_train(server_round, replies)
        except AggregationError:
            self.save_record(stopwatch)
            raise
        stopwatch.lap("aggregate")
        result.arrays = arrays or result.arrays
        if metrics is not None:
            result.train_metrics_clientapp[server_round] = metrics
        return bool(arrays)

    def _evaluate(self, server_round: int) -> None:
        strategy = self.strategy
        orders = strategy.configure_evaluate(
            server_round, self.result.arrays, self.evaluate_config, self.grid
        )
        replies = self.exchange.send(self.grid, orders, "evaluating", server_round)
        metrics = strategy.aggregate_evaluate(server_round, replies)
        self._stopwatch.lap("evaluate")
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[server_round] = metrics

    def _evaluate_on_server(self, server_round: int) -> None:
        if self.evaluate_fn is None:
            return
        metrics = self.evaluate_fn(server_round, self.result.arrays)
        if metrics is not None:
            self.result.evaluate_metrics_serverapp[server_round] = metrics
