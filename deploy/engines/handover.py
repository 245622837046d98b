"""Orders reach Flower's simulation engine when they are pushed.

Flower's engine polls every node ten times a second for orders, and searches all orders for each
node. A round starts up to 0.1 s late. With a hundred nodes and a hundred orders the search takes a
quarter of a core. Here the engine asks only the nodes that just got a message.
"""

import threading
from collections.abc import Iterable, Mapping
from queue import Empty, Queue, SimpleQueue
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from common.flower_internals import vce_api

STOP_SECONDS = 0.5  # until it is noticed that the run is over


class HandOver:
    """Takes the place of a function of the engine's, for the one run of this process."""

    def __init__(self) -> None:
        self._nodes: SimpleQueue[int] = SimpleQueue()

    def install(self) -> None:
        """Have the engine take orders from here."""
        vce_api.add_messages_to_queue = self.add_messages_to_queue

    def listen(self, grid: Grid) -> None:
        """Note whom this grid sends something."""
        push = grid.push_messages

        def pushed(messages: Iterable[Message]) -> Iterable[str]:
            batch = list(messages)
            taken = push(batch)
            for message in batch:
                self._nodes.put(message.metadata.dst_node_id)
            return taken

        grid.push_messages = pushed  # type: ignore[method-assign]

    def add_messages_to_queue(
        self,
        state: Any,
        queue: "Queue[Message]",
        nodes_mapping: Mapping[int, int],
        f_stop: threading.Event,
    ) -> None:
        """Pass each order on as it comes, until the run is over. The arguments are Flower's."""
        while not f_stop.is_set():
            try:
                node = self._nodes.get(timeout=STOP_SECONDS)
            except Empty:
                continue
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)
