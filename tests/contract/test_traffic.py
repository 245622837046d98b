"""Traffic measured on real messages, in models per client and round, headers included."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from common.layout import Layout
from common.methods import AFL, QFFL, FedAvg, FedDyn, FedPCD, FedPVR, Method, Scaffold
from common.models import build, layout_of
from common.wire.arrays import FlatCodec, NamedCodec
from common.wire.content import ARRAYS, payload_bytes
from common.wire.messages import Order, TrainReply
from server_app.round.ready_clients import ReadyClients
from server_app.strategy import MethodStrategy
from tests.builders import LR, Federation

pytestmark = pytest.mark.usefixtures("flower_identity")


def multiplier(method: Method[Any], layout: Layout) -> float:
    """Bytes of one real order and its real reply over the bytes of the model."""
    codec, grid = FlatCodec(layout), Federation(FedAvg(), clients=2)
    strategy = MethodStrategy(
        method, codec=codec, local_lr=lambda _: LR, registry=lambda _: ReadyClients(grid.nodes)
    )
    arrays = codec.pack(np.zeros(layout.size, np.float32), {})
    order = next(iter(strategy.configure_train(1, arrays, ConfigRecord(), grid))).content
    read = Order.read(order, layout)
    weights, buffers = codec.unpack(order[ARRAYS])
    client_payload = method.client_payload(read.server_payload, layout, weights, weights, LR)
    reply = TrainReply("0", 1, weights, buffers, 600, 19, 19 * LR, client_payload, {"loss": 2.3})
    return (payload_bytes(order) + payload_bytes(reply.record(codec))) / (4 * layout.size)


@pytest.mark.parametrize(
    ("method", "model", "models"),
    [
        (FedPVR(), "vgg11", 2.1088),
        (FedPVR(), "resnet8", 2.0167),
        (FedPVR(block="last:1"), "resnet8", 2.0167),
        (Scaffold(), "resnet8", 4),
        (FedPVR(block="*"), "resnet8", 4),
        (FedPVR(block=""), "resnet8", 2),
        (FedAvg(), "resnet8", 2),
        (FedPCD(), "resnet8", 2),
        (AFL(), "resnet8", 2),
        (QFFL(), "resnet8", 2),
        (FedDyn(), "resnet8", 2),  # of a client that was never seen
    ],
)
def test_round_sends_the_papers_number_of_models(
    method: Method[Any], model: str, models: float
) -> None:
    layout = layout_of(build(model, (3, 32, 32), 10, seed=0))
    assert multiplier(method, layout) == pytest.approx(models, rel=0.005)


def test_named_arrays_add_only_one_header_each() -> None:
    layout = layout_of(build("resnet8", (3, 32, 32), 10, seed=0))
    weights = np.zeros(layout.size, np.float32)
    named = NamedCodec(layout, tuple(tensor.name for tensor in layout.tensors))
    sizes = [
        sum(len(array.data) for array in codec.pack(weights, {}).values())
        for codec in (FlatCodec(layout), named)
    ]
    assert sizes[0] - 4 * layout.size <= 128
    assert sizes[1] - sizes[0] <= 128 * len(layout.tensors)


def test_record_of_a_round_holds_the_bytes_of_its_messages() -> None:
    federation = Federation(Scaffold(), size=5000)
    federation.train(1)
    record = federation.strategy.record
    assert record is not None
    for bytes_of in (record.bytes_down, record.bytes_up):
        assert list(bytes_of) == ["0", "1", "2", "3", "4"]
        for count in bytes_of.values():
            assert count == pytest.approx(2 * 4 * 5000, rel=0.02)


def test_client_that_returns_to_feddyn_receives_its_gradient() -> None:
    """Two models down and one up, instead of one each way."""
    federation = Federation(FedDyn(), size=5000)
    for number, models in ((1, 2), (2, 3)):
        federation.train(number)
        record = federation.record
        for client, down in record.bytes_down.items():
            total = down + record.bytes_up[client]
            assert total == pytest.approx(models * 4 * 5000, rel=0.02)
