"""The watch asks about a long message's run, and says that the run has ended when it has."""

import threading
from collections.abc import Callable
from dataclasses import replace

from deploy.node.run_watch import WATCH_SECONDS, RunWatch
from deploy.node.supernode_log import NodeLogState, read_log_line

BUSY = NodeLogState(connected=True, node_id=5, run="83", since=100.0, busy=True)


class Server:
    """Answers questions about runs and counts them."""

    def __init__(self, ended: set[int]) -> None:
        self.ended = ended
        self.questions: list[tuple[int, int]] = []
        self.answered = threading.Event()

    def is_over(self, node_id: int, run_id: int) -> bool:
        self.questions.append((node_id, run_id))
        self.answered.set()
        return run_id in self.ended


def eventually(condition: Callable[[], bool]) -> bool:
    done = threading.Event()
    return any(condition() or done.wait(0.01) for _ in range(500))


def test_no_question_is_asked_before_the_message_is_old() -> None:
    server = Server({83})
    watch = RunWatch(server.is_over)
    assert not watch.has_ended(BUSY, 100.0 + WATCH_SECONDS - 1)
    assert server.questions == []


def test_the_end_of_the_run_is_noticed_with_the_nodes_own_id() -> None:
    server = Server({83})
    watch = RunWatch(server.is_over)
    assert eventually(lambda: watch.has_ended(BUSY, 100.0 + WATCH_SECONDS))
    assert server.questions == [(5, 83)]


def test_a_run_that_goes_on_is_asked_about_again_after_the_pause() -> None:
    server = Server(set())
    watch = RunWatch(server.is_over)
    now = 100.0 + WATCH_SECONDS
    assert not watch.has_ended(BUSY, now)
    assert server.answered.wait(5)
    assert not watch.has_ended(BUSY, now + WATCH_SECONDS - 1)
    assert len(server.questions) == 1
    server.ended.add(83)
    assert eventually(lambda: watch.has_ended(BUSY, now + WATCH_SECONDS))
    assert len(server.questions) == 2


def test_an_idle_node_asks_nothing_and_ends_nothing() -> None:
    server = Server({83})
    watch = RunWatch(server.is_over)
    assert not watch.has_ended(replace(BUSY, busy=False), 1e6)
    assert server.questions == []


def test_the_end_of_one_run_does_not_end_the_work_for_another() -> None:
    watch = RunWatch(Server({83}).is_over)
    assert eventually(lambda: watch.has_ended(BUSY, 100.0 + WATCH_SECONDS))
    assert not watch.has_ended(replace(BUSY, run="84", since=200.0), 201.0)


def test_a_node_is_busy_from_a_message_to_its_reply() -> None:
    state = NodeLogState()
    lines = {
        "INFO :      SuperNode ID: 177229": False,
        "INFO :      [RUN 83, ROUND 3]": False,
        "INFO :      Receiving: train message (ID: fc0d)": True,
        "INFO :      Sending: train message (ID: 190a)": False,
        "INFO :      Sent successfully": False,
    }
    for line, is_busy in lines.items():
        state, _ = read_log_line(state, line, 1.0)
        assert state.busy == is_busy, line
    assert state.node_id == 177229
