"""What the server's aggregation costs, beside Flower's own and beside what the machine can do.

    python -m bench.server [--parameters 11200000] [--replies 10] [--rows 69] [--repeats 5]

Every figure is the whole `aggregate_train` of a strategy on replies as they come from the wire:
reading and checking them, the method, the new model, and packing it. FedAvg stands beside
Flower's FedAvg on the very same replies; FedPCD, with a history of `--rows` displacements, beside
its floor in the same process: one matrix product of its size at the best rate that numpy and torch
have for it here, one read of the history, and filling a matrix from the replies.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from common.layout import Layout, Tensor
from common.methods import Method
from common.types import Vector
from common.wire import FlatCodec, TrainReply
from deploy.engines.inline import FIRST_NODE, InlineGrid
from server_app.roster import Roster
from server_app.state import ServerState
from server_app.strategy import MethodStrategy

COMMON = 0.3  # length of what all displacements share, relative to what each has for itself
COLUMNS = (1024, 4096, 16384)  # of the blocks that the floor's product is tried with


def displacements(count: int, size: int, *path: int) -> Iterator[Vector]:
    """Draw displacements [d] that share a direction, as those of clients do."""
    shared = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    for number in range(count):
        own = np.random.default_rng([*path, number, 1]).standard_normal(size, dtype=np.float32)
        own += COMMON * shared
        own *= np.float32(1e-3)
        yield own


class Workload:
    """A model, a round's replies to it, and a strategy that has asked for them."""

    def __init__(self, size: int, replies: int) -> None:
        self.layout = Layout((Tensor("weight", (size,)),))
        self.codec = FlatCodec(self.layout)
        self.weights = np.random.default_rng(7).standard_normal(size, dtype=np.float32)
        self.arrays = self.codec.pack(self.weights, {})
        self.clients = [str(number) for number in range(replies)]
        self.replies = []
        InlineGrid(ClientApp(), 0, {}, 1).close()  # messages need somebody who says whose they are
        for client, delta in zip(self.clients, displacements(replies, size, 0), strict=True):
            record = TrainReply(
                client,
                100,
                self.weights - delta,
                {},
                500 + int(client),
                10,
                1.0,
                metrics={"loss": 1},
            ).record(self.codec)
            node = FIRST_NODE + int(client)
            order = Message(RecordDict(), node, MessageType.TRAIN)
            order.metadata.__dict__["_message_id"] = client
            self.replies.append(Message(record, reply_to=order))

    def strategy(self, method: Method[Any], state: Any) -> MethodStrategy:
        """Return a strategy whose next round is number 100."""
        roster = Roster.of({c: FIRST_NODE + int(c) for c in self.clients})
        strategy = MethodStrategy(method, codec=self.codec, roster=lambda _: roster)
        strategy.state = ServerState(99, self.weights, {}, state)
        return strategy
