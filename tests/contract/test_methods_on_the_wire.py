"""Properties of every method in `METHODS` when real messages drive it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, MetricRecord, RecordDict
from numpy.testing import assert_allclose

from common.methods import METHODS, Method
from common.types import LOSS, ClientUpdate, Vector
from common.wire.arrays import WEIGHTS
from common.wire.content import ARRAYS, METRICS
from common.wire.reply_metrics import EXAMPLES
from tests.builders import (
    LR,
    Federation,
    assert_same,
    begin,
    changed,
    play,
    silent,
)
from tests.each import for_each

pytestmark = pytest.mark.usefixtures("flower_identity")

METHOD = pytest.mark.parametrize("method", [kind() for kind in METHODS.values()], ids=METHODS)
BUFFERS = {"norm.running_mean": np.array([0.5, 2.0], np.float32), "norm.count": np.array(7)}


# ---------------------------------------------------------------- behind real messages


@METHOD
def test_rounds_over_messages_equal_rounds_without_them(method: Method[Any]) -> None:
    """Three rounds over the wire are three rounds without it, but for float32 rounding."""
    federation = Federation(method, fraction_train=0.6)
    state = begin(method, federation.layout, federation.weights, np.float32)
    for number in (1, 2, 3):
        federation.train(number)
        record = federation.strategy.record
        assert record is not None
        assert record.dropped == {}
        assert len(record.replied) == 3
        (state,) = play(method, state, federation.layout, federation.problems, [record.replied],
                        examples=lambda client: 10 * (int(client) + 1))  # fmt: skip
        assert_allclose(federation.weights, state.weights, rtol=1e-5, atol=1e-6)


def spoil(value: float) -> Callable[[RecordDict], None]:
    """Put one bad number into the weights."""

    def change(content: RecordDict) -> None:
        weights = content[ARRAYS][WEIGHTS].numpy().copy()
        weights[3] = value
        content[ARRAYS][WEIGHTS] = Array(weights)

    return change


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/5240
@METHOD
@for_each("value", [np.nan, np.inf, -np.inf])
def test_client_with_nan_is_dropped_and_its_state_stays(method: Method[Any], value: float) -> None:
    """The round is, bit for bit, the one in which that client never replied."""
    spoilt, without = Federation(method), Federation(method)
    for federation, tamper in ((spoilt, changed(spoil(value))), (without, silent)):
        federation.train(1)
        federation.train(2, {"2": tamper})
    record = spoilt.strategy.record
    assert record is not None
    assert list(record.dropped) == ["2"]
    assert "NaN or infinite in classifier.weight" in record.dropped["2"] or (
        "NaN or infinite in features.weight" in record.dropped["2"]
    )
    assert record.replied == ["0", "1", "3", "4"]
    assert_same(spoilt.strategy.state, without.strategy.state)
    spoilt.train(3)
    without.train(3)
    assert_same(spoilt.strategy.state, without.strategy.state)


def claiming(examples: int) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[METRICS][EXAMPLES] = examples

    return change


# A public report of this bug: https://github.com/flwrlabs/flower/issues/7708
@METHOD
def test_round_in_which_all_clients_report_zero_examples_changes_nothing(
    method: Method[Any],
) -> None:
    federation = Federation(method, clients=3)
    federation.train(1)
    before = federation.strategy.state
    nobody = {client: changed(claiming(0)) for client in "012"}
    assert federation.train(2, nobody) is None
    record = federation.strategy.record
    assert record is not None
    assert record.void == "0 of 3 replies usable, 1 needed"
    assert all("nothing to train on" in reason for reason in record.dropped.values())
    assert federation.strategy.state is before
    federation.train(3)
    assert federation.strategy.record.void is None


@METHOD
def test_round_with_one_usable_client_uses_it_alone(method: Method[Any]) -> None:
    federation, alone = Federation(method, clients=3), Federation(method, clients=3)
    federation.train(1, {"0": changed(claiming(0)), "1": changed(claiming(0)),
                         "2": changed(claiming(5))})  # fmt: skip
    alone.train(1, {"0": silent, "1": silent})
    assert_same(federation.weights, alone.weights)


def buffered(values: Mapping[str, Vector], examples: int) -> ClientUpdate:
    return ClientUpdate(str(examples), examples, 1, LR, np.ones(3, np.float32), values)


# A public report of this bug: https://github.com/flwrlabs/flower/issues/4344
@METHOD
def test_buffers_keep_dtype_and_shape_over_the_wire(method: Method[Any]) -> None:
    federation = Federation(method, buffers=BUFFERS)
    for number in range(1, 6):
        federation.train(number)
    state = federation.strategy.state
    assert state is not None
    assert_same(dict(state.buffers), BUFFERS)
    _, buffers = federation.codec.unpack(federation.arrays)
    assert_same(buffers, BUFFERS)


@METHOD
def test_nan_metric_drops_the_client_only_if_the_method_needs_it(method: Method[Any]) -> None:
    def nan_loss(content: RecordDict) -> None:
        content[METRICS] = MetricRecord({**content[METRICS], "loss": float("nan")})

    federation, honest = Federation(method), Federation(method)
    metrics = federation.train(1, {"3": changed(nan_loss)})
    if LOSS in method.needs:
        assert list(federation.record.dropped) == ["3"]
        assert '"loss", a number of at least 0' in federation.record.dropped["3"]
        return
    honest.train(1)
    assert metrics is not None
    assert metrics["loss"] == pytest.approx((1 * 10 + 2 * 20 + 3 * 30 + 5 * 50) / 110)
    record = federation.strategy.record
    assert record is not None
    assert record.train_loss == metrics["loss"]
    assert_same(federation.weights, honest.weights)
