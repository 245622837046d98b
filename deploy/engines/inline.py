"""InlineGrid: a federation in one process, with no start-up, driving the very same two apps."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from client_app.app import app
from common.config import RunConfig
from common.flower_internals import SUPERLINK_NODE_ID, ErrorCode, Run, TaskIdentity
from deploy.engines.base import Resources
from deploy.engines.client_call import answer
from server_app.app import run
from server_app.run_dir.run_dir import LOG, logging_to

GRACE_SECONDS = 5.0
FIRST_NODE = 1001  # node ids are not partition ids; here as elsewhere


class InlineGrid(Grid):
    """A Flower Grid whose nodes are calls of a ClientApp in a pool of threads.

    Args:
        client_app: the app that every node runs.
        nodes: number of nodes. Node i holds partition i.
        run_config: what clients find in their context.
        workers: clients that run at the same time.
    """

    def __init__(
        self, client_app: ClientApp, nodes: int, run_config: Mapping[str, Any], workers: int
    ) -> None:
        self.client_app = client_app
        self.stop = threading.Event()
        self._run = Run.create_empty(run_id=1)
        self._ids = count(1)
        self._replies: dict[str, Message] = {}
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="client")
        config = dict(run_config)  # one for all: copies would take 4 kB a node
        self._contexts = {
            FIRST_NODE + partition: Context(
                run_id=1,
                node_id=FIRST_NODE + partition,
                node_config={"partition-id": partition, "num-partitions": nodes},
                state=RecordDict(),
                run_config=config,
            )
            for partition in range(nodes)
        }
        TaskIdentity.run_id = TaskIdentity.task_id = 1
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def set_run(self, run: Run) -> None:
        """Take over a run's description."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run's description."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message. Flower keeps this for older apps."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all node ids."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the clients to the end and keep their replies for `pull_messages`."""
        batch = list(messages)
        for message in batch:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
        known = [m for m in batch if m.metadata.dst_node_id in self._contexts]
        for reply in self._pool.map(self._answer, known):
            self._replies[reply.metadata.reply_to_message_id] = reply
        if self.stop.is_set():
            raise KeyboardInterrupt("stopped by the user")
        return [message.metadata.message_id for message in known]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return and forget the replies to these messages."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return one reply a message; a call cannot be interrupted, so `timeout` has no effect."""
        return self.pull_messages(self.push_messages(messages))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _answer(self, message: Message) -> Message:
        if self.stop.is_set():
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "stopping"), reply_to=message)
        return answer(self.client_app, message, self._contexts[message.metadata.dst_node_id])


class InlineJob:
    """A run in a thread of this process."""

    def __init__(self, config: RunConfig, resources: Resources) -> None:
        self._error = ""
        self._grid = InlineGrid(app, config.clients, config.to_flat(), resources.workers)
        self._thread = threading.Thread(target=self._work, args=(config,), name="server")
        self._thread.start()

    def _work(self, config: RunConfig) -> None:
        try:
            with logging_to(Path(config.out) / config.name / LOG, alone=True):
                run(self._grid, config)
        except KeyboardInterrupt:  # from push_messages: signals reach the main thread alone
            pass
        except Exception as error:  # told by whoever started the job
            self._error = f"{type(error).__name__}: {error}"
        finally:
            self._grid.close()

    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Wait a few seconds for the clients that train. The command's end ends the others."""
        self._grid.stop.set()
        self._thread.join(GRACE_SECONDS)

    def why_it_ended(self) -> str:
        """Return the error, if there was one."""
        return self._error
