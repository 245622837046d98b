"""What comes over the wire is what was meant, or it is refused with one reason."""

import ast
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from common.errors import WireError
from common.layout import Layout, Tensor
from common.rng import stream
from common.wire.arrays import (
    BUFFERS,
    COUNTERS,
    WEIGHTS,
    Codec,
    FlatCodec,
    NamedCodec,
    refuse_non_finite,
)
from common.wire.client_card import ClientCard
from common.wire.content import ARRAYS, CONFIG, METRICS, payload_bytes
from common.wire.messages import Order, TrainReply, client_id_of, read_train_reply, timeout_of
from common.wire.reply_metrics import EXAMPLES, read_metrics, to_metric_record
from common.wire.vectors import VECTOR, get_vectors, put_vectors
from tests.builders import assert_same, layout_of_size

# ---------------------------------------------------------------- models

MODEL = Layout(
    (Tensor("a.weight", (2, 3)), Tensor("b", ())),
    (
        Tensor("n.running_mean", (2,)),
        Tensor("n.half", (2,), "float16"),
        Tensor("n.num_batches_tracked", (), "int64"),
        Tensor("n.flag", (2,), "bool"),
    ),
)
VALUES = {
    "n.running_mean": np.array([0.1, -2], np.float32),
    "n.half": np.array([0.1, 3], np.float16),
    "n.num_batches_tracked": np.array(2**40 + 1),
    "n.flag": np.array([True, False]),
}
NAMES = ("n.running_mean", "a.weight", "n.half", "b", "n.num_batches_tracked", "n.flag")
CODECS = pytest.mark.parametrize("codec", [FlatCodec(MODEL), NamedCodec(MODEL, NAMES)])


# A public report of this bug: https://github.com/flwrlabs/flower/issues/4344
@CODECS
def test_a_model_comes_back_bit_for_bit(codec: Codec) -> None:
    weights = stream(0, "weights").normal(size=7).astype(np.float32)
    read, buffers = codec.unpack(codec.pack(weights, VALUES))
    assert_same(read, weights)
    assert_same(dict(buffers), VALUES)


def test_a_flat_model_is_at_most_three_arrays_and_a_plain_one_is_one() -> None:
    weights = np.zeros(7, np.float32)
    assert set(FlatCodec(MODEL).pack(weights, VALUES)) == {WEIGHTS, BUFFERS, COUNTERS}
    assert set(FlatCodec(layout_of_size(7)).pack(weights, {})) == {WEIGHTS}


def test_named_arrays_keep_the_order_in_which_they_first_came() -> None:
    codec = NamedCodec(MODEL, NAMES)
    assert tuple(codec.pack(np.zeros(7, np.float32), VALUES)) == NAMES


@CODECS
@pytest.mark.parametrize("extra", [True, False])
def test_missing_and_unknown_arrays_are_named(codec: Codec, extra: bool) -> None:
    record = codec.pack(np.zeros(7, np.float32), VALUES)
    name = next(iter(record))
    if extra:
        record["more"] = Array(np.ones(1))
    else:
        del record[name]
    with pytest.raises(WireError, match="unknown more" if extra else f"missing {name}"):
        codec.unpack(record)


class Quick(nn.Module):
    """A model of somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.head = nn.Linear(2, 3)
        self.register_buffer("scale", torch.ones(1))


def test_what_is_trained_is_guessed_from_a_state_dict_or_told() -> None:
    record = ArrayRecord(Quick().state_dict())
    guessed = NamedCodec.of(record).layout
    assert [t.name for t in guessed.buffers] == [
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    told = NamedCodec.of(record, (*(t.name for t in guessed.buffers), "scale")).layout
    assert "scale" in guessed.spans
    assert "scale" not in told.spans
    assert guessed.size == told.size + 1


def test_a_state_dict_goes_out_and_loads_strictly() -> None:
    model = Quick()
    record = ArrayRecord(model.state_dict())
    codec = NamedCodec.of(record)
    again = codec.pack(*codec.unpack(record))
    state = again.to_torch_state_dict()
    Quick().load_state_dict(state, strict=True)
    assert list(state) == list(model.state_dict())
    for name, value in model.state_dict().items():
        assert state[name].dtype == value.dtype
        assert state[name].shape == value.shape
        assert torch.equal(state[name], value)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (ArrayRecord({"w": Array(np.ones(2))}), "'w': 'float64'"),
        (ArrayRecord({"w": Array(np.ones(2, np.float16))}), "'w': 'float16'"),
        (ArrayRecord({"n": Array(np.ones(2, np.int64))}), "no arrays at all"),
        (ArrayRecord(), "no arrays at all"),
    ],
)
def test_weights_of_another_kind_are_refused_at_start(record: ArrayRecord, said: str) -> None:
    with pytest.raises(WireError, match=said):
        NamedCodec.of(record)


# ---------------------------------------------------------------- vectors, orders, replies


@given(st.dictionaries(st.sampled_from(["shift", "variate", "x"]),
                       st.lists(st.floats(width=32, allow_nan=False), max_size=5)))  # fmt: skip
def test_vectors_come_back_bit_for_bit(given_: dict[str, list[float]]) -> None:
    config = ConfigRecord({"server-round": 1})
    put_vectors(config, {name: np.array(values) for name, values in given_.items()})
    read = get_vectors(config)
    assert read.keys() == given_.keys()
    for name, values in given_.items():
        assert_same(read[name], np.array(values, np.float32))


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/4838
@pytest.mark.parametrize("flip", [0, 7, 11])
def test_a_vector_with_one_bit_wrong_does_not_match_its_digest(flip: int) -> None:
    config = ConfigRecord()
    put_vectors(config, {"shift": np.ones(3)})
    data = bytearray(config[VECTOR + "shift"])
    data[flip] ^= 1
    config[VECTOR + "shift"] = bytes(data)
    with pytest.raises(WireError, match='"shift" does not match its digest'):
        get_vectors(config)
    del config[f"{VECTOR}shift.digest"]
    with pytest.raises(WireError, match='"shift" does not match its digest'):
        get_vectors(config)


def test_an_order_is_read_as_it_was_written() -> None:
    layout = layout_of_size(5)
    order = Order(3, 0.05, layout.digest, {"shift": np.arange(2, dtype=np.float32)})
    read = Order.read(RecordDict({CONFIG: order.config()}), layout)
    assert_same(read, order)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c[CONFIG].update({"keel-layout": "ff"}), "layout 'ff'"),
        (lambda c: c[CONFIG].pop("keel-layout"), "layout None"),
        (lambda c: c[CONFIG].pop("lr"), '"lr"'),
        (lambda c: c[CONFIG].update({"lr": "fast"}), '"lr"'),
        (lambda c: c[CONFIG].pop("server-round"), '"server-round"'),
        (lambda c: c.pop(CONFIG), 'no ConfigRecord "config"'),
    ],
)
def test_an_order_for_another_model_or_without_its_parts_is_refused(
    change: Callable[[RecordDict], Any], said: str
) -> None:
    layout = layout_of_size(5)
    content = RecordDict({CONFIG: Order(3, 0.05, layout.digest).config()})
    change(content)
    with pytest.raises(WireError, match=said):
        Order.read(content, layout)


def reply(**changes: Any) -> TrainReply:
    values = {
        "client": "7", "round": 3, "weights": np.arange(5, dtype=np.float32), "buffers": {},
        "examples": 12, "steps": 4, "lr_sum": 0.4, "metrics": {"loss": 1.5},
        "client_payload": {"variate": np.ones(2, np.float32)},
    }  # fmt: skip
    return TrainReply(**{**values, **changes})


def test_a_reply_is_read_as_it_was_written() -> None:
    codec = FlatCodec(layout_of_size(5))
    assert_same(read_train_reply(reply().record(codec), codec, 3), reply())


def test_a_reply_has_the_records_that_flowers_own_checks_want() -> None:
    content = reply().record(FlatCodec(layout_of_size(5)))
    assert len(content.array_records) == len(content.metric_records) == 1


def test_an_ordinary_clients_reply_says_neither_round_nor_steps() -> None:
    record = ArrayRecord({"w": Array(np.ones(3, np.float32))})
    content = RecordDict({ARRAYS: record, METRICS: MetricRecord({EXAMPLES: 5, "train_loss": 2.0})})
    read = read_train_reply(content, NamedCodec.of(record), 9)
    assert (read.client, read.round, read.steps, read.lr_sum) == ("", 9, 0, 0.0)
    assert read.metrics == {"train_loss": 2.0}


def test_the_only_model_in_a_reply_is_the_model_whatever_it_is_called() -> None:
    record = ArrayRecord({"w": Array(np.ones(3, np.float32))})
    content = RecordDict({"model": record, "m": MetricRecord({"n": 5})})
    assert read_train_reply(content, NamedCodec.of(record), 1, weight_key="n").examples == 5


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/5240
def test_the_error_names_the_tensor_of_a_bad_value() -> None:
    codec = FlatCodec(MODEL)
    weights = np.zeros(7, np.float32)
    weights[[1, 2]] = np.nan, np.inf
    with pytest.raises(WireError, match=r"2 value\(s\) are NaN or infinite in a\.weight"):
        refuse_non_finite(WEIGHTS, weights, MODEL)
    buffers = {**VALUES, "n.running_mean": np.array([0, np.nan], np.float32)}
    record = reply(weights=np.zeros(7, np.float32), buffers=buffers).record(codec)
    with pytest.raises(WireError, match=r"1 value\(s\) are NaN or infinite in n\.running_mean"):
        read_train_reply(record, codec, 3)


# ---------------------------------------------------------------- metrics


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/246
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (torch.tensor(2.5), 2.5),
        (np.array(4), 4),
        (True, 1),
        (7, 7),
    ],
)
def test_numpy_and_torch_scalars_become_python_numbers(value: Any, kept: float) -> None:
    record = to_metric_record({"x": value})
    assert record == {"x": kept}
    assert type(record["x"]) is type(kept)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), np.float32("nan"), "text"])
def test_undefined_values_are_absent_not_zero_and_not_nan(value: Any) -> None:
    assert to_metric_record({"x": value, "y": 1}) == {"y": 1}


def test_a_reply_without_metrics_has_none() -> None:
    assert read_metrics(RecordDict()) == {}
    assert read_metrics(RecordDict({"m": MetricRecord({"a": [1, 2], "b": 3})})) == {"b": 3}


def test_the_payload_is_counted_in_bytes() -> None:
    content = RecordDict(
        {
            "a": ArrayRecord({"w": Array(np.ones(100, np.float32))}),
            "c": ConfigRecord({"x": b"\0" * 40, "s": "abc", "n": 1, "l": [1.0, 2.0]}),
            "m": MetricRecord({"loss": 1.0}),
        }
    )
    assert payload_bytes(content) == (400 + 128) + 40 + 3 + 8 + 16 + 8


def test_a_card_is_read_as_it_was_written() -> None:
    card = ClientCard("3", "trains on the CPU", (1, 28, 28), 10, 480, 120)
    assert ClientCard.read(card.record()) == card


# ---------------------------------------------------------------- memory


def test_a_message_that_was_read_is_gone_with_its_last_use() -> None:
    """Without a garbage collection, which may be hundreds of models away."""
    codec = FlatCodec(layout_of_size(5))
    content = reply().record(codec)
    ref = weakref.ref(content)
    gc.collect()
    gc.disable()
    try:
        payload_bytes(content)
        client_id_of(content)
        timeout_of(content)
        read_train_reply(content, codec, 3)
        del content
        assert ref() is None
    finally:
        gc.enable()


def test_nobody_uses_flowers_properties_that_keep_messages_alive() -> None:
    for package in ("common", "server_app", "client_app", "deploy"):
        for path in (Path(__file__).parents[4] / package).rglob("*.py"):
            code = ast.parse(path.read_text())
            names = {node.attr for node in ast.walk(code) if isinstance(node, ast.Attribute)}
            assert not names & {"array_records", "config_records", "metric_records"}, path
