"""A hostile client is refused by name, and the model is that of a run without it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, MetricRecord, RecordDict
from numpy.testing import assert_array_equal

from common.errors import AggregationError
from common.methods import FedAvg, FedPCD, FedPVR, Method, Scaffold
from common.types import Vector
from common.wire.arrays import WEIGHTS
from common.wire.content import ARRAYS, METRICS
from common.wire.messages import TrainReply
from common.wire.reply_metrics import CORRECT, EXAMPLES
from server_app.round.ready_clients import ReadyClients
from server_app.round.update_limits import MEMORY, UPDATE, UpdateLimits
from tests.builders import Federation, changed, failing, silent

pytestmark = pytest.mark.usefixtures("flower_identity")
MANY: list[Method[Any]] = [FedAvg(), FedPCD(), FedPVR(), Scaffold()]


def scaled(factor: float, federation: Federation) -> Callable[[RecordDict], None]:
    """Return a change that makes an update longer by this factor."""

    def change(content: RecordDict) -> None:
        record = content[ARRAYS]
        received = federation.weights
        reached = record[WEIGHTS].numpy()
        record[WEIGHTS] = Array((received + factor * (reached - received)).astype(np.float32))

    return change


def count(number: int) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[METRICS] = MetricRecord({**content[METRICS], EXAMPLES: number})

    return change


def weights_after(federation: Federation, rounds: int, tampers: Any = None) -> Vector:
    for number in range(1, rounds + 1):
        federation.train(number, tampers() if tampers else None)
    return federation.weights


@pytest.mark.parametrize("factor", [1e3, -1e3, 1e20])
@pytest.mark.parametrize("method", MANY, ids=lambda method: method.name)
def test_a_long_update_is_refused_and_the_model_is_that_without_its_client(
    method: Method[Any], factor: float
) -> None:
    attacked, honest = Federation(method, clients=6), Federation(method, clients=6)
    weights_after(attacked, 4, lambda: {"5": changed(scaled(factor, attacked))})
    weights_after(honest, 4, lambda: {"5": silent})
    assert_array_equal(attacked.weights, honest.weights)
    reason = attacked.record.dropped["5"]
    assert "its update has the length" in reason
    assert "times the median" in reason
    assert "server.max-update-ratio allows 100 times" in reason


def test_an_update_within_the_ratio_is_used_unchanged() -> None:
    federation = Federation(FedAvg(), clients=6)
    federation.train(1, {"5": changed(scaled(20.0, federation))})
    assert federation.record.dropped == {}
    assert federation.record.lengths.keys() == set("012345")
    longest = max(federation.record.lengths, key=lambda c: federation.record.lengths[c][UPDATE])
    assert longest == "5"


def test_no_ratio_accepts_every_length() -> None:
    federation = Federation(FedAvg(), clients=6, max_update_ratio=0.0)
    federation.train(1, {"5": changed(scaled(1e6, federation))})
    assert federation.record.dropped == {}


def test_the_absolute_limit_works_for_a_single_client() -> None:
    federation = Federation(FedAvg(), clients=1, max_update_norm=1.0)
    federation.train(1, {"0": changed(scaled(1e6, federation))})
    assert "server.max-update-norm allows 1" in federation.record.dropped["0"]
    assert federation.record.void


def test_a_long_control_variate_is_refused_by_its_name() -> None:
    federation = Federation(Scaffold(), clients=6)
    original = federation.train_reply

    def hostile(order: Any) -> TrainReply:
        reply = original(order)
        if reply.client != "5":
            return reply
        payload = {name: 1e9 * vector for name, vector in reply.client_payload.items()}
        return replace(reply, client_payload=payload)

    federation.train_reply = hostile  # type: ignore[method-assign]
    federation.train(1)
    assert 'its vector "' in federation.record.dropped["5"]
    assert federation.record.replied == list("01234")


# ---------------------------------------------------------------- small cohorts


def length(value: float) -> dict[str, float]:
    return {UPDATE: value}


def by_name(*lengths: dict[str, float]) -> dict[str, dict[str, float]]:
    return {str(k): value for k, value in enumerate(lengths)}


def test_two_clients_alone_are_not_judged_and_three_are() -> None:
    limits = UpdateLimits(100.0, 0.0)
    assert limits.refusals({"a": length(1.0), "b": length(1e6)}) == {}
    assert list(limits.refusals({"a": length(1.0), "b": length(1e6), "c": length(2.0)})) == ["b"]


def test_a_small_cohort_is_compared_with_earlier_rounds() -> None:
    limits = UpdateLimits(100.0, 0.0)
    limits.remember(by_name(length(1.0), length(2.0), length(3.0)))
    assert list(limits.refusals({"a": length(1e6)})) == ["a"]
    assert limits.refusals({"a": length(150.0)}) == {}
    assert limits.refusals({"a": length(1e-9)}) == {}


def test_only_the_newest_lengths_are_remembered() -> None:
    limits = UpdateLimits(100.0, 0.0)
    limits.remember(by_name(*[length(1.0)] * MEMORY))
    limits.remember(by_name(*[length(1e4)] * MEMORY))
    assert limits.refusals({"a": length(1e5)}) == {}


def test_zero_lengths_say_nothing_about_the_others() -> None:
    limits = UpdateLimits(100.0, 0.0)
    cohort = {"a": length(0.0), "b": length(0.0), "c": length(0.0), "d": length(5.0)}
    assert limits.refusals(cohort) == {}


@pytest.mark.parametrize("hostile", [1, 2, 4])
def test_a_minority_of_long_updates_is_refused_whatever_its_place(hostile: int) -> None:
    limits = UpdateLimits(100.0, 0.0)
    lengths = {str(k): length(1e12 if k < hostile else 1.0 + k) for k in range(9)}
    assert list(limits.refusals(lengths)) == [str(k) for k in range(hostile)]


def test_lengths_do_not_depend_on_the_unit_of_the_weights() -> None:
    lengths = {"a": 1.0, "b": 3.0, "c": 2.0, "d": 500.0}
    for unit in (1e-20, 1.0, 1e20):
        scaled_ = {client: length(unit * value) for client, value in lengths.items()}
        assert list(UpdateLimits(100.0, 0.0).refusals(scaled_)) == ["d"]


# ---------------------------------------------------------------- counts


def with_cards(federation: Federation, train: int, test: int) -> None:
    ready = ReadyClients.of(federation.nodes)
    everyone = list(federation.nodes)
    cards = replace(
        ready,
        train_examples=dict.fromkeys(everyone, train),
        test_examples=dict.fromkeys(everyone, test),
    )
    federation.strategy.exchange.registry = lambda _: cards


@pytest.mark.parametrize("number", [61, 10**12, 2**53])
@pytest.mark.parametrize("method", [FedAvg(), FedPCD()], ids=lambda method: method.name)
def test_a_count_above_the_card_is_refused_with_both_numbers(
    method: Method[Any], number: int
) -> None:
    attacked, honest = Federation(method, clients=6), Federation(method, clients=6)
    with_cards(attacked, train=60, test=10)
    weights_after(attacked, 2, lambda: {"1": changed(count(number))})
    weights_after(honest, 2, lambda: {"1": silent})
    assert_array_equal(attacked.weights, honest.weights)
    reason = attacked.record.dropped["1"]
    assert f"reports {number} training samples" in reason
    assert "its card says 60" in reason


def test_counts_of_used_replies_are_in_the_record() -> None:
    federation = Federation(FedAvg(), clients=3)
    federation.train(1)
    assert federation.record.examples == {"0": 10, "1": 20, "2": 30}


def test_a_client_cannot_evaluate_on_more_samples_than_its_card_says() -> None:
    federation = Federation(FedAvg(), clients=3)
    with_cards(federation, train=60, test=10)
    federation.train(1)

    def inflate(content: RecordDict) -> None:
        content[METRICS] = MetricRecord({EXAMPLES: 10**9, CORRECT: 10**9})

    federation.evaluate(1, {"2": changed(inflate)})
    evaluation = federation.record.evaluation
    assert evaluation is not None
    assert "reports 1000000000 test samples, and its card says 10" in evaluation.absent["2"]


# ---------------------------------------------------------------- buffers

BUFFERS = {
    "bn.running_mean": np.zeros(2, np.float32),
    "bn.running_var": np.ones(2, np.float32),
    "bn.num_batches_tracked": np.array(5),
}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("bn.running_var", [1.0, -5.0], "bn.running_var has the variance -5, which is below 0"),
        ("bn.num_batches_tracked", 3, "bn.num_batches_tracked is 3, and the client received 5"),
        ("bn.running_mean", [1e20, 0.0], 'its vector "buffers" has the length 1e+20'),
    ],
)
def test_an_impossible_buffer_is_refused_by_its_name(name: str, value: Any, reason: str) -> None:
    federation = Federation(FedAvg(), clients=6, buffers=BUFFERS)
    original = federation.train_reply

    def reply_of(order: Any) -> TrainReply:
        reply = original(order)
        moved = 0.1 * (1 + int(reply.client))
        buffers = {**reply.buffers, "bn.running_mean": np.full(2, moved, np.float32)}
        if reply.client == "5":
            buffers[name] = np.asarray(value, BUFFERS[name].dtype)
        return replace(reply, buffers=buffers)

    federation.train_reply = reply_of  # type: ignore[method-assign]
    federation.train(1)
    assert list(federation.record.dropped) == ["5"]
    assert reason in federation.record.dropped["5"]
    state = federation.strategy.state
    assert state is not None
    assert (state.buffers["bn.running_var"] >= 0).all()


# ---------------------------------------------------------------- resume


def test_a_resumed_run_judges_a_small_cohort_as_the_run_would_have() -> None:
    run = Federation(FedAvg(), clients=2)
    records = []
    for number in (1, 2):
        run.train(number)
        records.append(run.record)
    resumed = Federation(FedAvg(), clients=2)
    resumed.strategy.state = run.strategy.state
    for record in records:
        resumed.strategy.training.remember(type(record).from_json(record.to_json()))
    resumed.arrays = run.arrays
    for federation in (run, resumed):
        federation.train(3, {"1": changed(scaled(1e6, federation))})
    assert run.record.dropped == resumed.record.dropped != {}


# ---------------------------------------------------------------- a spoiled model


def test_when_nobody_can_train_the_message_names_the_client_with_the_longest_update() -> None:
    federation = Federation(FedAvg(), clients=3, max_update_ratio=0.0, max_void_rounds=1)
    federation.train(1, {"1": changed(scaled(1e6, federation))})
    with pytest.raises(AggregationError) as caught:
        federation.train(2, dict.fromkeys("012", failing("the loss became nan")))
    assert "the longest update in it came from client 1: " in str(caught.value)
    assert "--resume --from-round ROUND" in str(caught.value)
