"""Orders and replies go through Flower's simulation engine when they come.

By itself the engine asks every node ten times a second whether there is an order for it, and for
each answer it looks through all orders: a round starts up to 0.1 s late, and with a hundred of both
a quarter of a core does nothing else. Here it asks those nodes that were just sent something. And
whoever pulls replies waits for one, rather than look for it again and again.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from queue import Empty, Queue, SimpleQueue
from typing import Any

from flwr.app import Message
from flwr.server.superlink.fleet.vce import vce_api
from flwr.serverapp import Grid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

STOP_SECONDS = 0.5  # until it is noticed that the run is over
PULL_SECONDS = 1.0  # that a pull waits for a reply


class HandOver:
    """Takes the place of a function of the engine's, for the one run of this process."""

    def __init__(self) -> None:
        self._nodes: SimpleQueue[int] = SimpleQueue()
        self._came = threading.Condition()
        self._replies = 0

    def install(self) -> None:
        """Have the engine take orders from here."""
        vce_api.add_messages_to_queue = self.add_messages_to_queue

    def listen(self, grid: Grid) -> None:
        """Note whom this grid sends something, and when a reply comes."""
        assert isinstance(grid, InMemoryGrid), "the one that Flower's simulation gives a ServerApp"
        push, pull, store = grid.push_messages, grid.pull_messages, grid.state.store_message_res

        def pushed(messages: Iterable[Message]) -> Iterable[str]:
            batch = list(messages)
            taken = push(batch)
            for message in batch:
                self._nodes.put(message.metadata.dst_node_id)
            return taken

        def pulled(message_ids: Iterable[str]) -> Iterable[Message]:
            names, until = list(message_ids), time.monotonic() + PULL_SECONDS
            while True:
                seen = self._replies  # before the look: one that comes during it is not missed
                found = list(pull(names))
                with self._came:
                    left = until - time.monotonic()
                    if found or left <= 0:
                        return found
                    if self._replies == seen:
                        self._came.wait(left)

        def stored(message: Message) -> str | None:
            name = store(message)
            with self._came:
                self._replies += 1
                self._came.notify_all()
            return name

        grid.push_messages, grid.pull_messages = pushed, pulled  # type: ignore[method-assign]
        grid.state.store_message_res = stored  # type: ignore[method-assign]

    def add_messages_to_queue(
        self,
        state: Any,
        queue: "Queue[Message]",
        nodes_mapping: Mapping[int, int],
        f_stop: threading.Event,
    ) -> None:
        """Pass each order on as it comes, until the run is over; arguments as Flower's."""
        while not f_stop.is_set():
            try:
                node = self._nodes.get(timeout=STOP_SECONDS)
            except Empty:
                continue
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)
