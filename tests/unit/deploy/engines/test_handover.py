"""Orders reach Flower's simulation engine when they are pushed, and only its own loop is left out.

What is replaced is no part of Flower's public interface: these tests fail when it changes.
"""

import inspect
import threading
import time
from collections.abc import Iterator
from queue import Queue

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord, Task
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from deploy.engines.handover import HandOver

pytestmark = pytest.mark.usefixtures("flower_identity")
NODES = 5


@pytest.fixture
def factory() -> LinkStateFactory:
    """What Flower's simulation keeps messages in, with the run that `flower_identity` speaks of."""
    made = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    run = Run.create_empty(run_id=1)
    run.federation_id, run.primary_task_id = NOOP_FEDERATION_ID, 1
    state = made.state()
    state.run_ids[1], state.task_store[1] = RunRecord(run=run), Task(task_id=1, run_id=1)
    return made


@pytest.fixture
def orders(factory: LinkStateFactory) -> Iterator[tuple[InMemoryGrid, "Queue[Message]", list[int]]]:
    """A grid that is listened to, the engine's queue, and the nodes."""
    nodes = vce_api._register_nodes(NODES, factory)
    grid = InMemoryGrid(state_factory=factory)
    grid.set_run(factory.state().run_ids[1].run)
    taken: Queue[Message] = Queue()
    over, hand_over = threading.Event(), HandOver()
    hand_over.listen(grid)
    thread = threading.Thread(
        target=hand_over.add_messages_to_queue, args=(factory.state(), taken, nodes, over)
    )
    thread.start()
    yield grid, taken, list(nodes)
    over.set()
    thread.join(5)
    assert not thread.is_alive(), "it does not end with the run"


def test_what_is_pushed_comes_at_once_and_once(
    orders: tuple[InMemoryGrid, "Queue[Message]", list[int]],
) -> None:
    grid, taken, nodes = orders
    chosen = [nodes[3], nodes[0], nodes[3]]
    for _ in range(3):
        begin = time.monotonic()
        pushed = grid.push_messages([Message(RecordDict(), n, MessageType.TRAIN) for n in chosen])
        came = [taken.get(timeout=5) for _ in chosen]
        assert [message.metadata.dst_node_id for message in came] == chosen
        assert {message.metadata.message_id for message in came} == set(pushed)
        if time.monotonic() - begin < 0.05:  # Flower looks every 0.1 s; a busy machine may be slow
            break
    else:
        pytest.fail("orders wait")
    assert taken.empty()


def test_it_is_what_the_engine_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = inspect.signature(vce_api.add_messages_to_queue).parameters
    assert list(replaced) == list(inspect.signature(HandOver().add_messages_to_queue).parameters)
    assert "add_messages_to_queue" in vce_api.run_api.__code__.co_names
    monkeypatch.setattr(vce_api, "add_messages_to_queue", vce_api.add_messages_to_queue)
    hand_over = HandOver()
    hand_over.install()
    assert vce_api.add_messages_to_queue == hand_over.add_messages_to_queue
