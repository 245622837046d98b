"""Evaluation, orders and the loop: what is asked, when, and what is made of the answers."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from common.methods import METHODS, FedAvg, FedPCD, Method, Scaffold
from common.runs.live_state import LiveState
from common.runs.records import RoundRecord
from common.types import LOSS
from common.wire.arrays import WEIGHTS, NamedCodec
from common.wire.content import CONFIG, METRICS
from common.wire.messages import ROUND
from common.wire.reply_metrics import CORRECT, EXAMPLES, PERSONAL, PERSONAL_ROUND
from server_app.round.messaging import LATE
from server_app.state.options import Options
from server_app.state.server_state import ServerState
from server_app.strategy import MethodStrategy
from tests.builders import (
    Federation,
    Tamper,
    assert_same,
    changed,
    failing,
    silent,
)

pytestmark = pytest.mark.usefixtures("flower_identity")
METHOD = pytest.mark.parametrize("method", [kind() for kind in METHODS.values()], ids=METHODS)


def without_metrics(content: RecordDict) -> None:
    del content[METRICS]


# ---------------------------------------------------------------- evaluation


def scored(**metrics: float) -> Tamper:
    return changed(lambda content: content.update({METRICS: MetricRecord(metrics)}))


def reports(examples: int, correct: int) -> Tamper:
    return scored(**{EXAMPLES: examples, CORRECT: correct, "acc": correct / (examples or 1)})


# A public report of this bug: https://github.com/flwrlabs/flower/issues/7708
@METHOD
def test_evaluation_without_examples_has_no_numbers(method: Method[Any]) -> None:
    federation = Federation(method, clients=3)
    federation.train(1)
    assert federation.evaluate(1, {client: reports(0, 0) for client in "012"}) is None
    evaluation = federation.record.evaluation
    assert evaluation is not None
    assert evaluation.fairness is None
    assert evaluation.absent == dict.fromkeys("012", "no test examples")


@METHOD
def test_clients_without_examples_have_no_accuracy(method: Method[Any]) -> None:
    federation = Federation(method, clients=3)
    federation.train(1)
    tampers = {"0": reports(0, 0), "1": reports(0, 0), "2": reports(5, 4)}
    metrics = federation.evaluate(1, tampers)
    evaluation = federation.record.evaluation
    assert metrics == {CORRECT: 4, "acc": 0.8}
    assert evaluation is not None
    assert evaluation.fairness is not None
    assert (evaluation.fairness.clients, evaluation.fairness.mean) == (1, 0.8)
    assert set(evaluation.absent) == {"0", "1"}


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (failing("no data"), "no data"),
        (silent, "no reply"),
        (changed(without_metrics), 'expected "num-examples", a whole number'),
        (scored(**{EXAMPLES: float("nan"), CORRECT: 1}), 'expected "num-examples", a whole number'),
        (scored(**{EXAMPLES: 5, CORRECT: 6}), "6 correct answers of 5 are impossible"),
        (scored(**{EXAMPLES: 5, CORRECT: float("nan")}), "are impossible"),
        (scored(**{EXAMPLES: 5, "accuracy": 87.5}), "are impossible"),
        (scored(**{EXAMPLES: 5, "accuracy": float("nan")}), "neither"),
        (scored(**{EXAMPLES: 5, "loss": 1.0}), 'neither "correct" nor "accuracy"'),
    ],
)
def test_why_a_client_has_no_score_is_written_down(tamper: Tamper, reason: str) -> None:
    federation = Federation(FedAvg())
    federation.train(1)
    federation.evaluate(1, {"1": tamper})
    evaluation = federation.record.evaluation
    assert evaluation is not None
    assert list(evaluation.absent) == ["1"]
    assert reason in evaluation.absent["1"]
    assert list(evaluation.clients) == ["0", "2", "3", "4"]


@pytest.mark.parametrize("key", ["accuracy", "eval_acc"])
def test_ordinary_clients_accuracy_becomes_a_count(key: str) -> None:
    federation = Federation(FedAvg(), clients=1)
    federation.train(1)
    metrics = federation.evaluate(1, {"0": scored(**{EXAMPLES: 30, key: 0.7})})
    evaluation = federation.record.evaluation
    assert evaluation is not None
    assert evaluation.clients["0"].correct == 21
    assert metrics == {key: 0.7}


def test_metrics_are_averaged_without_a_reported_accuracy() -> None:
    federation = Federation(FedAvg(), clients=2)
    federation.train(1)
    tampers = {"0": scored(**{EXAMPLES: 1, "mae": 3.0}), "1": scored(**{EXAMPLES: 3, "mae": 1.0})}
    assert federation.evaluate(1, tampers) == {"mae": 1.5}


def test_each_metric_is_averaged_over_those_that_have_it() -> None:
    federation = Federation(FedAvg(), clients=3)
    federation.train(1)
    tampers = {
        "0": scored(**{EXAMPLES: 1, CORRECT: 1, "auc": float("nan")}),
        "1": scored(**{EXAMPLES: 2, CORRECT: 1, "auc": 0.5}),
        "2": scored(**{EXAMPLES: 6, CORRECT: 1, "auc": 0.9}),
    }
    metrics = federation.evaluate(1, tampers)
    assert metrics is not None
    assert metrics["auc"] == pytest.approx(0.8)


def test_own_metrics_functions_get_the_usable_replies() -> None:
    seen = []

    def mine(contents: list[RecordDict], key: str) -> MetricRecord:
        seen.append((len(contents), key))
        return MetricRecord({"mine": 1})

    federation = Federation(FedAvg())
    federation.strategy.train_metrics_aggr_fn = mine
    federation.strategy.evaluate_metrics_aggr_fn = mine
    assert federation.train(1, {"1": silent}) == {"mine": 1}
    assert federation.evaluate(1, {"1": silent, "2": reports(0, 0)}) == {"mine": 1}
    assert seen == [(4, EXAMPLES), (3, EXAMPLES)]


def test_without_evaluation_no_order_is_sent() -> None:
    federation = Federation(FedAvg(), fraction_evaluate=0.0)
    federation.train(1)
    assert federation.evaluate(1) is None
    assert federation.record.evaluation is None


# ---------------------------------------------------------------- orders and the loop


def orders_of(
    strategy: MethodStrategy, grid: Federation, arrays: ArrayRecord, **config: Any
) -> list[Message]:
    return list(strategy.configure_train(1, arrays, ConfigRecord(config), grid))


def named_arrays() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.ones(3, np.float32))})


@pytest.mark.parametrize(
    ("config", "told", "counted"),
    [({}, None, 1.0), ({"lr": 0.3}, 0.3, 0.3), ({"lr": 2}, 2, 2.0), ({"lr": "fast"}, "fast", 1.0)],
)
def test_an_ordinary_client_finds_only_the_learning_rate_that_somebody_set(
    config: dict[str, Any], told: Any, counted: float
) -> None:
    strategy, grid = MethodStrategy(FedAvg()), Federation(FedAvg())
    (order, *_) = orders_of(strategy, grid, named_arrays(), epochs=3, **config)
    assert order.content[CONFIG].get("lr") == told
    assert order.content[CONFIG]["epochs"] == 3
    assert order.content[CONFIG][ROUND] == 1
    assert strategy.exchange.sent.lr == counted


def test_a_schedule_of_the_server_counts_more_than_the_train_config() -> None:
    strategy = MethodStrategy(FedAvg(), local_lr=lambda number: 0.5 / number)
    (order, *_) = orders_of(strategy, Federation(FedAvg()), named_arrays(), lr=0.3)
    assert order.content[CONFIG]["lr"] == 0.5 == strategy.exchange.sent.lr


def test_the_callers_config_is_not_written_to() -> None:
    config = ConfigRecord({"epochs": 3})
    federation = Federation(Scaffold())
    list(federation.strategy.configure_train(1, federation.arrays, config, federation))
    assert dict(config) == {"epochs": 3}


def test_the_records_keep_the_names_that_were_asked_for() -> None:
    options = Options(arrayrecord_key="model", configrecord_key="conf", weighted_by_key="n")
    strategy, grid = MethodStrategy(FedAvg(), options), Federation(FedAvg(), clients=1)
    (order,) = orders_of(strategy, grid, named_arrays())
    assert set(order.content) == {"model", "conf"}
    reply = RecordDict({"model": named_arrays(), "stats": MetricRecord({"n": 4})})
    arrays, _ = strategy.aggregate_train(1, [Message(reply, reply_to=order)])
    assert arrays is not None
    assert strategy.record is not None
    assert strategy.record.dropped == {}


def test_at_least_as_many_clients_are_asked_as_flowers_minimum_says() -> None:
    for options, asked in [
        ({"fraction_train": 0.5}, 2),
        ({"fraction_train": 0.01}, 1),
        ({"fraction_train": 0.01, "min_train_nodes": 4}, 4),
        ({"fraction_train": 1.0}, 5),
    ]:
        federation = Federation(FedAvg(), **options)
        assert len(orders_of(federation.strategy, federation, federation.arrays)) == asked


class Grid(Federation):
    """A federation that runs the strategy's own loop."""

    def push_messages(self, messages: list[Message]) -> list[str]:
        self.sent = {f"message-{n}": message for n, message in enumerate(messages)}
        for name, message in self.sent.items():
            message.metadata.__dict__["_message_id"] = name
        return list(self.sent)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        messages = [self.sent.pop(name) for name in message_ids if name in self.sent]
        evaluates = [m for m in messages if m.metadata.message_type == "evaluate"]
        trains = [m for m in messages if m.metadata.message_type == "train"]
        scores = RecordDict({METRICS: MetricRecord({EXAMPLES: 10, CORRECT: 5})})
        return [
            *self._replies(trains, lambda m: self.train_reply(m).record(self.codec), {}),
            *self._replies(evaluates, lambda _: scores, {}),
        ]


class Watcher:
    """An observer that keeps what it sees."""

    def __init__(self) -> None:
        self.states: list[ServerState[Any]] = []
        self.records: list[RoundRecord] = []
        self.scenes: list[LiveState] = []

    def save_state(self, state: ServerState[Any]) -> None:
        self.states.append(state)

    def save_record(self, record: RoundRecord) -> None:
        self.records.append(record)

    def show_live(self, live: LiveState) -> None:
        self.scenes.append(live)


@METHOD
def test_the_loop_goes_on_from_a_restored_state_to_the_same_bits(method: Method[Any]) -> None:
    through, halfway = Grid(method, fraction_train=0.6), Grid(method, fraction_train=0.6)
    whole = through.strategy.start(through, through.arrays, num_rounds=6)
    halfway.strategy.start(halfway, halfway.arrays, num_rounds=4)
    resumed, watcher = Grid(method, fraction_train=0.6), Watcher()
    resumed.strategy.state, resumed.strategy.observer = halfway.strategy.state, watcher
    rest = resumed.strategy.start(resumed, resumed.arrays, num_rounds=6)
    assert [record.round for record in watcher.records] == [5, 6]
    assert list(rest.train_metrics_clientapp) == [5, 6]
    assert_same(rest.arrays[WEIGHTS].data, whole.arrays[WEIGHTS].data)
    assert_same(resumed.strategy.state, through.strategy.state)


@pytest.mark.parametrize(("every", "rounds"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [5])])
def test_evaluation_comes_every_so_often_and_at_the_end(every: int, rounds: list[int]) -> None:
    grid, watcher = Grid(FedAvg(), eval_every=every), Watcher()
    grid.strategy.observer = watcher
    result = grid.strategy.start(grid, grid.arrays, num_rounds=5)
    assert list(result.evaluate_metrics_clientapp) == rounds
    assert [r.round for r in watcher.records if r.evaluation] == rounds
    assert [state.round for state in watcher.states] == [1, 2, 3, 4, 5]
    assert all(record.seconds.keys() >= {"configure", "train", "aggregate"} for record in
               watcher.records)  # fmt: skip


def test_a_round_that_is_cut_off_before_its_record_does_not_count_as_told() -> None:
    class Stopping(Watcher):
        def show_live(self, live: LiveState) -> None:
            if (live.phase, live.round) == ("evaluating", 3):
                raise KeyboardInterrupt

    grid, watcher = Grid(FedAvg(), eval_every=1), Stopping()
    grid.strategy.observer = watcher
    with pytest.raises(KeyboardInterrupt):
        grid.strategy.start(grid, grid.arrays, num_rounds=5)
    assert grid.strategy.recorded_round == len(watcher.records) == 2
    resumed = Grid(FedAvg())
    resumed.strategy.state = watcher.states[-1]
    resumed.strategy.start(resumed, resumed.arrays, num_rounds=2)  # nothing is left to do
    assert resumed.strategy.recorded_round == 2


def test_a_run_without_a_usable_round_still_has_a_model_to_save() -> None:
    grid = Grid(FedAvg(), min_replies=9)
    result = grid.strategy.start(grid, grid.arrays, num_rounds=2)
    assert_same(result.arrays[WEIGHTS].data, grid.arrays[WEIGHTS].data)


def test_the_servers_own_evaluation_sees_round_0_and_each_round() -> None:
    grid = Grid(FedAvg())
    seen: list[tuple[int, ArrayRecord]] = []

    def look(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        seen.append((number, arrays))
        return MetricRecord({"n": number}) if number else None

    result = grid.strategy.start(grid, grid.arrays, num_rounds=2, evaluate_fn=look)
    assert [number for number, _ in seen] == [0, 1, 2]
    assert list(result.evaluate_metrics_serverapp) == [1, 2]
    assert seen[2][1] is result.arrays


def test_a_model_that_the_caller_changed_between_rounds_is_the_one_that_counts() -> None:
    federation = Federation(FedPCD())
    federation.train(1)
    state = federation.strategy.state
    assert state is not None
    federation.arrays = federation.codec.pack(np.zeros(12, np.float32), {})
    federation.train(2)
    after = aggregate_from_zero = federation.strategy.state
    assert after is not None
    assert after.round == 2
    fresh = Federation(FedPCD())
    fresh.strategy.state = replace(state, weights=np.zeros(12, np.float32))
    fresh.arrays = federation.codec.pack(np.zeros(12, np.float32), {})
    fresh.train(2)
    assert_same(aggregate_from_zero, fresh.strategy.state)


def test_named_and_flat_arrays_lead_to_the_same_model() -> None:
    """A model of an ordinary client, named arrays and all, is the one of a flat vector."""
    flat = Federation(FedPCD(tau=0.1))
    layout = flat.layout
    named = Federation(FedPCD(tau=0.1))
    named.codec = NamedCodec(layout, tuple(reversed(layout.spans)))  # type: ignore[assignment]
    named.strategy.model.codec = named.codec
    named.arrays = named.codec.pack(flat.weights, {})
    for number in (1, 2):
        flat.train(number)
        named.train(number)
    assert list(named.arrays) == ["classifier.weight", "features.weight"]
    assert_same(named.weights, flat.weights)
    assert LOSS in named.train(3)  # type: ignore[operator]


def both(examples: int, correct: int, own: int, since: int) -> Tamper:
    told = {EXAMPLES: examples, CORRECT: correct, PERSONAL + CORRECT: own, PERSONAL_ROUND: since}
    return scored(**told)


def test_the_clients_own_models_are_scored_beside_the_one_for_all() -> None:
    federation = Federation(FedAvg())
    federation.train(1)
    tampers = {
        "0": both(10, 5, 9, since=1),
        "1": both(10, 5, 6, since=0),
        "2": both(10, 5, 11, since=1),
        "3": silent,
        "4": scored(**{EXAMPLES: 10, CORRECT: 5}),
    }
    federation.evaluate(1, tampers)
    evaluation = federation.record.evaluation
    assert evaluation is not None
    assert evaluation.fairness is not None
    assert evaluation.fairness.mean == 0.5
    own = evaluation.personal
    assert own is not None
    assert own.fairness is not None
    assert {client: score.correct for client, score in own.clients.items()} == {"0": 9, "1": 6}
    assert own.fairness.mean == 0.75
    assert own.untrained == ["1"]
    assert "11 correct answers of 10 are impossible" in own.absent["2"]
    assert own.absent["3"] == LATE
    assert "neither" in own.absent["4"]


def test_where_nobody_has_a_model_of_its_own_nothing_is_said_of_them() -> None:
    federation = Federation(FedAvg())
    federation.train(1)
    federation.evaluate(1)
    assert federation.record.evaluation is not None
    assert federation.record.evaluation.personal is None
