"""One bad client costs itself the round and nobody else; every reason is written down."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from numpy.testing import assert_allclose

from common.errors import AggregationError
from common.methods import METHODS, FedAvg, FedPCD, FedPVR, Method, Scaffold
from common.types import ClientUpdate, Cohort
from common.wire import (
    ARRAYS,
    CONFIG,
    CORRECT,
    EXAMPLES,
    LAYOUT,
    LOSS,
    LR_SUM,
    METRICS,
    ROUND,
    STEPS,
    VECTOR,
    WEIGHTS,
    NamedCodec,
    put_vectors,
)
from server_app.records import RoundRecord
from server_app.state import ServerState, next_state
from server_app.strategy import MethodStrategy, Options
from tests.builders import (
    LR,
    Federation,
    Quadratic,
    Tamper,
    assert_same,
    changed,
    failing,
    silent,
)

pytestmark = pytest.mark.usefixtures("flower_identity")
METHOD = pytest.mark.parametrize("method", [kind() for kind in METHODS.values()], ids=METHODS)


def record_of(federation: Federation) -> RoundRecord:
    assert federation.strategy.record is not None
    return federation.strategy.record


def aggregate_of(federation: Federation, number: int, names: str) -> ServerState[Any]:
    """What these clients' honest replies make of the federation's state, without the strategy."""
    strategy, state = federation.strategy, federation.strategy.state
    assert state is not None
    updates = []
    for order in strategy.configure_train(number, federation.arrays, ConfigRecord(), federation):
        reply = federation.train_reply(order)
        if reply.client in names:
            delta = state.weights - reply.weights
            updates.append(
                ClientUpdate(reply.client, reply.examples, 2, 2 * LR, delta, extras=reply.extras)
            )
    after, _ = next_state(state, Cohort(number, LR, 5, tuple(updates)), federation.method, 1.0)
    return after


def without_arrays(content: RecordDict) -> None:
    del content[ARRAYS]


def without_metrics(content: RecordDict) -> None:
    del content[METRICS]


def metric(key: str, value: float) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[METRICS] = MetricRecord({**content[METRICS], key: value})

    return change


def setting(key: str, value: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[CONFIG][key] = value

    return change


def weights(change: Callable[[Any], Any]) -> Callable[[RecordDict], None]:
    def of(content: RecordDict) -> None:
        content[ARRAYS] = ArrayRecord({WEIGHTS: Array(change(content[ARRAYS][WEIGHTS].numpy()))})

    return of


BAD: dict[str, tuple[Tamper, str]] = {
    "raises": (failing("ValueError: boom"), "its ClientApp raised an error: ValueError: boom"),
    "is killed": (failing("", ErrorCode.CLIENT_APP_CRASHED), "its process died"),
    "goes offline": (failing("", ErrorCode.NODE_UNAVAILABLE), "it went offline"),
    "never replies": (silent, "no reply within the round's deadline"),
    "misses the tensor": (changed(lambda c: c[ARRAYS].clear()), "missing weights"),
    "has no arrays": (changed(without_arrays), 'no ArrayRecord "arrays"'),
    "has no metrics": (changed(without_metrics), 'no number "num-examples"'),
    "has one more array": (
        changed(lambda c: c[ARRAYS].update({"x": Array(np.ones(1))})), "unknown x",
    ),
    "has another shape": (changed(weights(lambda w: w[:-1])), r"got float32[11]"),
    "has another dtype": (changed(weights(lambda w: w.astype(np.float16))), "got float16[12]"),
    "overflowed in float16": (
        changed(weights(lambda w: (w + 70_000).astype(np.float16).astype(np.float32))),
        "12 value(s) are NaN or infinite",
    ),
    "answers another round": (changed(setting(ROUND, 1)), "the reply is for server-round 1, not 2"),
    "has another layout": (changed(setting(LAYOUT, "ab12")), "the reply is for keel-layout 'ab12'"),
    "claims to be another": (
        changed(setting("keel-client", "1")), 'says it is from client "1"',
    ),
    "has negative examples": (changed(metric(EXAMPLES, -3)), "whole number of at least 0, not -3"),
    "has half an example": (changed(metric(EXAMPLES, 1.5)), "whole number of at least 0, not 1.5"),
    "has NaN examples": (
        changed(metric(EXAMPLES, float("nan"))), "whole number of at least 0, not nan",
    ),
    "has no examples": (changed(metric(EXAMPLES, 0)), "nothing to train on"),
    "has NaN steps": (changed(metric(STEPS, float("nan"))), "must be finite"),
    "has infinite rates": (changed(metric(LR_SUM, float("inf"))), "must be finite"),
}  # fmt: skip


@METHOD
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # the client's own, in the test
@pytest.mark.parametrize("what", BAD)
def test_flb_02_one_bad_client_is_named_and_the_others_are_aggregated(
    method: Method[Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    tamper, reason = BAD[what]
    federation = Federation(method)
    federation.train(1)
    expected = aggregate_of(federation, 2, "0124")
    with caplog.at_level(logging.WARNING, logger="flwr"):
        federation.train(2, {"3": tamper})
    record = record_of(federation)
    assert list(record.dropped) == ["3"]
    assert reason in record.dropped["3"]
    assert record.replied == ["0", "1", "2", "4"]
    assert record.void is None
    assert f"client 3 dropped: {record.dropped['3']}" in caplog.text
    assert_allclose(federation.weights, expected.weights, atol=1e-6)
    federation.train(3)
    assert record_of(federation).replied == ["0", "1", "2", "3", "4"]


def test_flb_02_a_metric_more_is_no_reason_to_lose_a_client() -> None:
    federation, honest = Federation(FedPCD()), Federation(FedPCD())
    metrics = federation.train(1, {"3": changed(metric("extra", 4.0))})
    honest.train(1)
    assert record_of(federation).dropped == {}
    assert metrics is not None
    assert metrics["extra"] == 4.0
    assert_same(federation.weights, honest.weights)


def test_a_second_reply_of_the_same_client_is_not_counted() -> None:
    federation, honest = Federation(FedAvg()), Federation(FedAvg())
    once = federation._replies
    federation._replies = lambda *args: once(*args) * 2  # type: ignore[method-assign]
    federation.train(1)
    honest.train(1)
    assert record_of(federation).replied == ["0", "1", "2", "3", "4"]
    assert_same(federation.weights, honest.weights)
    assert federation.evaluate(1) == honest.evaluate(1)


def test_a_stranger_is_not_heard() -> None:
    federation = Federation(FedAvg())
    stranger = Message(RecordDict(), 77, "train")
    federation.train(1, {"0": lambda order, content: Message(content, reply_to=stranger)})
    assert record_of(federation).replied == ["1", "2", "3", "4"]


@pytest.mark.parametrize("method", [FedPVR(), Scaffold()])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.pop(CONFIG), "needs the vectors"),
        (lambda c: put_vectors(c[CONFIG], {"variate": np.ones(3)}), r"got {'variate': 3}"),
        (lambda c: put_vectors(c[CONFIG], {"more": np.ones(3)}), "'more': 3"),
        (lambda c: c[CONFIG].update({VECTOR + "variate": b"\0" * 48}), "match its digest"),
        (lambda c: c[CONFIG].update({VECTOR + "variate": b"\0" * 5}), "whole number of float32"),
        (lambda c: c[CONFIG].update({VECTOR + "variate": "text"}), "whole number of float32"),
        (
            lambda c: put_vectors(c[CONFIG], {"variate": np.full(c[CONFIG]["n"], np.nan)}),
            "NaN or infinite in variate",
        ),
    ],
)
def test_flb_13_a_variate_that_is_missing_cut_or_damaged_is_refused(
    method: Method[Any], change: Callable[[RecordDict], None], reason: str
) -> None:
    federation, without = Federation(method), Federation(method)
    size = next(iter(method.expects(method.init(federation.layout)).values()))

    def tamper(content: RecordDict) -> None:
        content[CONFIG]["n"] = size
        change(content)

    for number in (1, 2):
        federation.train(number, {"3": changed(tamper)})
        without.train(number, {"3": silent})
    assert reason in record_of(federation).dropped["3"]
    assert_same(federation.strategy.state, without.strategy.state)


# ---------------------------------------------------------------- void rounds


@METHOD
def test_too_few_replies_make_the_round_void_and_change_nothing(method: Method[Any]) -> None:
    federation = Federation(method, min_replies=4)
    federation.train(1)
    before, sent = federation.strategy.state, federation.arrays
    assert federation.train(2, {"0": silent, "1": failing("x")}) is None
    assert record_of(federation).void == "3 of 5 replies usable, 4 needed"
    assert record_of(federation).train_loss is not None
    assert federation.strategy.state is before
    assert federation.arrays is sent
    federation.train(3)
    assert record_of(federation).void is None


def test_void_rounds_in_a_row_end_the_run_and_say_why() -> None:
    federation = Federation(FedAvg(), max_void_rounds=2, min_replies=5)
    federation.train(1, {"2": failing("no disk")})
    federation.train(2)
    federation.train(3, {"2": failing("no disk")})
    with pytest.raises(AggregationError, match=r"2 void rounds .*2: .*no disk.*of round 2"):
        federation.train(4, {"2": failing("no disk")})
    assert record_of(federation).void


@METHOD
def test_flb_10_a_step_that_overflows_makes_the_round_void(method: Method[Any]) -> None:
    federation = Federation(method, server_lr=1e39)
    before = federation.weights
    federation.train(1)
    assert "not finite float32 numbers" in str(record_of(federation).void)
    assert_same(federation.weights, before)


@METHOD
def test_flb_10_an_update_that_overflows_is_dropped_although_the_weights_are_finite(
    method: Method[Any],
) -> None:
    federation = Federation(method)
    flat = Quadratic(np.zeros(12), np.zeros(12))
    federation.problems = dict.fromkeys(federation.problems, flat)
    federation.arrays = federation.codec.pack(np.full(12, 3e38, np.float32), {})
    federation.train(1, {"3": changed(weights(lambda w: -w))})
    assert list(record_of(federation).dropped) == ["3"]
    assert "too far from the model" in record_of(federation).dropped["3"]
    assert np.isfinite(federation.weights).all()


def test_flb_16_nobody_asked_is_a_void_round_and_no_crash() -> None:
    federation = Federation(FedPCD(), fraction_train=0.0)
    assert federation.train(1) is None
    assert record_of(federation).void == "0 of 0 replies usable, 1 needed"


# ---------------------------------------------------------------- evaluation


def scored(**metrics: float) -> Tamper:
    return changed(lambda content: content.update({METRICS: MetricRecord(metrics)}))


def reports(examples: int, correct: int) -> Tamper:
    return scored(**{EXAMPLES: examples, CORRECT: correct, "acc": correct / (examples or 1)})


@METHOD
def test_flb_09_evaluation_of_nobodys_examples_has_no_numbers(method: Method[Any]) -> None:
    federation = Federation(method, clients=3)
    federation.train(1)
    assert federation.evaluate(1, {client: reports(0, 0) for client in "012"}) is None
    evaluation = record_of(federation).evaluation
    assert evaluation is not None
    assert evaluation.fairness is None
    assert evaluation.absent == dict.fromkeys("012", "no test examples")


@METHOD
def test_flb_09_clients_without_examples_are_no_accuracy_of_zero(method: Method[Any]) -> None:
    federation = Federation(method, clients=3)
    federation.train(1)
    tampers = {"0": reports(0, 0), "1": reports(0, 0), "2": reports(5, 4)}
    metrics = federation.evaluate(1, tampers)
    evaluation = record_of(federation).evaluation
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
        (changed(without_metrics), 'no number "num-examples"'),
        (scored(**{EXAMPLES: float("nan"), CORRECT: 1}), 'no number "num-examples"'),
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
    evaluation = record_of(federation).evaluation
    assert evaluation is not None
    assert list(evaluation.absent) == ["1"]
    assert reason in evaluation.absent["1"]
    assert list(evaluation.clients) == ["0", "2", "3", "4"]


@pytest.mark.parametrize("key", ["accuracy", "eval_acc"])
def test_ordinary_clients_accuracy_becomes_a_count(key: str) -> None:
    federation = Federation(FedAvg(), clients=1)
    federation.train(1)
    metrics = federation.evaluate(1, {"0": scored(**{EXAMPLES: 30, key: 0.7})})
    evaluation = record_of(federation).evaluation
    assert evaluation is not None
    assert evaluation.clients["0"].correct == 21
    assert metrics == {key: 0.7}


def test_metrics_are_averaged_even_where_no_accuracy_is_told() -> None:
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


def test_without_evaluation_nobody_is_asked() -> None:
    federation = Federation(FedAvg(), fraction_evaluate=0.0)
    federation.train(1)
    assert federation.evaluate(1) is None
    assert record_of(federation).evaluation is None


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
    assert strategy._asked.lr == counted


def test_a_schedule_of_the_server_counts_more_than_the_train_config() -> None:
    strategy = MethodStrategy(FedAvg(), local_lr=lambda number: 0.5 / number)
    (order, *_) = orders_of(strategy, Federation(FedAvg()), named_arrays(), lr=0.3)
    assert order.content[CONFIG]["lr"] == 0.5 == strategy._asked.lr


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

    def send_and_receive(
        self, messages: list[Message], *, timeout: float | None = None
    ) -> list[Message]:
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

    def keep(self, state: ServerState[Any]) -> None:
        self.states.append(state)

    def note(self, record: RoundRecord) -> None:
        self.records.append(record)


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
    named.strategy.codec = named.codec
    named.arrays = named.codec.pack(flat.weights, {})
    for number in (1, 2):
        flat.train(number)
        named.train(number)
    assert list(named.arrays) == ["classifier.weight", "features.weight"]
    assert_same(named.weights, flat.weights)
    assert LOSS in named.train(3)  # type: ignore[operator]
