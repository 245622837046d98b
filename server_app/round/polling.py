"""ReplyPoller: a node that stalls, or that sends malformed replies, delays no other node.

Flower's `pull_messages` waits for a reply whose upload is still going on, even for hours, and
raises an error for a malformed one. So each poll runs in a thread, and the messages are divided
among a few polls.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Message
from flwr.serverapp import Grid
from httpx import HTTPError, TransportError  # raised by Flower's grid: refused, not reached

from common.flower_internals import ErrorCode, ObjectPushError
from common.io.text import single_line
from server_app.round.bounded_pull import ReplyLimit, pull_replies
from server_app.round.error_reasons import is_lost

PARALLEL_POLLS = 4


class _Poll:
    """A thread that pulls the replies to some messages."""

    def __init__(self, grid: Grid, messages: list[str], limit: ReplyLimit) -> None:
        self.messages, self.limit = messages, limit
        self.replies: list[Message] = []
        self.refused: dict[str, str] = {}
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._pull, args=(grid,), daemon=True)
        self.thread.start()

    def _pull(self, grid: Grid) -> None:
        try:
            wanted = set(self.messages)
            found, self.refused = pull_replies(grid, self.messages, self.limit)
            self.replies = [m for m in found if m.metadata.reply_to_message_id in wanted]
        except BaseException as error:
            self.error = error


class ReplyPoller:
    """Polls for replies in threads. Remembers the nodes that need a poll of their own."""

    def __init__(self) -> None:
        self._running: list[_Poll] = []
        self._alone: set[int] = set()  # one of these nodes sent a malformed reply

    def take(
        self, grid: Grid, nodes: Mapping[str, int], timeout: float, limit: ReplyLimit
    ) -> list[tuple[str, Message | str]]:
        """Return each reply that arrived with the id of its message.

        A text in place of a reply is the reason why the reply cannot be read.

        Args:
            grid: Flower's grid.
            nodes: the node to which each awaited message went, by message id.
            timeout: seconds. A slower poll goes on, and a later call returns its replies.
            limit: the size that a reply may have.

        Raises:
            BaseException: an error that ends the run, for example a stop at the SuperLink.
        """
        busy = {name for poll in self._running for name in poll.messages}
        for group in self._groups([name for name in nodes if name not in busy], nodes):
            self._running.append(_Poll(grid, group, limit))
        until = time.monotonic() + timeout
        for poll in self._running:
            poll.thread.join(max(0.0, until - time.monotonic()))
        done = [poll for poll in self._running if not poll.thread.is_alive()]
        self._running = [poll for poll in self._running if poll not in done]
        return [pair for poll in done for pair in self._results(poll, nodes)]

    def _groups(self, names: Iterable[str], nodes: Mapping[str, int]) -> list[list[str]]:
        """Divide messages among polls, so that a node that stalls delays few others."""
        alone = [[name] for name in names if nodes[name] in self._alone]
        rest = [name for name in names if nodes[name] not in self._alone]
        return alone + [rest[k::PARALLEL_POLLS] for k in range(min(PARALLEL_POLLS, len(rest)))]

    def _results(
        self, poll: _Poll, nodes: Mapping[str, int]
    ) -> Iterator[tuple[str, Message | str]]:
        """Yield the replies of a poll.

        If one of several replies is malformed, Flower drops the others too and does not say which
        one it was. Flower then reports their messages as expired, so that all of them are sent
        again. From then on each of these nodes has a poll of its own.
        """
        error = poll.error
        if isinstance(error, TransportError):
            return  # the SuperLink hangs. The next call polls again
        if error is not None and (isinstance(error, HTTPError) or not isinstance(error, Exception)):
            raise error
        if error is not None and len(poll.messages) == 1:
            text = single_line(f"{type(error).__name__}: {error}")
            yield poll.messages[0], f"its reply is malformed: {text!r}"
        elif error is not None:
            self._alone |= {nodes[name] for name in poll.messages if name in nodes}
        yield from ((name, why) for name, why in poll.refused.items() if name in nodes)
        for reply in poll.replies:
            name, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if name not in nodes:
                continue  # no longer awaited
            if was_lost(reply) or node == nodes[name]:
                yield name, reply
            else:
                yield name, f"its reply says that it is from node {node}, not {nodes[name]}"


def was_lost(reply: Message) -> bool:
    """Whether the client was lost before it replied, or its reply was lost on the way."""
    return reply.has_error() and (
        is_lost(reply.error) or reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    )


def push_messages(grid: Grid, messages: list[Message]) -> set[str]:
    """Push messages. Return the ids of those that the SuperLink accepted.

    Raises:
        HTTPError: the SuperLink refuses them, for example because the run was stopped.
    """
    if not messages:
        return set()
    try:
        return {name for name in grid.push_messages(messages) if name}
    except (ObjectPushError, TransportError):  # interrupted: all of them count as lost
        return set()
