"""Looks for replies: one node that stalls, or that sends rubbish, holds up nobody else.

Flower's `pull_messages` waits for a reply that is still being uploaded, be that for hours, and
trips over one that is malformed. So each look is a thread, and messages are dealt to a few of them.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from httpx import HTTPError, TransportError  # what Flower's grid raises: refused, not reached

from common.io.text import single_line
from server_app.round.error_reasons import is_lost

APART = 4  # looks that go on side by side


class _Look:
    """One look for the replies to some messages."""

    def __init__(self, grid: Grid, messages: list[str]) -> None:
        self.messages = messages
        self.replies: list[Message] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, args=(grid,), daemon=True)
        self.thread.start()

    def _work(self, grid: Grid) -> None:
        try:
            found, wanted = list(grid.pull_messages(self.messages)), set(self.messages)
            self.replies = [m for m in found if m.metadata.reply_to_message_id in wanted]
        except BaseException as error:
            self.error = error


class Looks:
    """The looks that go on, and which nodes are to be looked at alone."""

    def __init__(self) -> None:
        self._going: list[_Look] = []
        self._alone: set[int] = set()  # one of these nodes sent rubbish

    def take(
        self, grid: Grid, nodes: Mapping[str, int], patience: float
    ) -> list[tuple[str, Message | str]]:
        """Return the replies that are there, each with the message it answers, or why it is none.

        Args:
            grid: Flower's grid.
            nodes: where each message went that is waited for.
            patience: seconds; a look that takes longer goes on, and its replies come later.

        Raises:
            BaseException: what ends the run, such as that it was stopped at the SuperLink.
        """
        busy = {name for look in self._going for name in look.messages}
        for group in self._groups([name for name in nodes if name not in busy], nodes):
            self._going.append(_Look(grid, group))
        until = time.monotonic() + patience
        for look in self._going:
            look.thread.join(max(0.0, until - time.monotonic()))
        over = [look for look in self._going if not look.thread.is_alive()]
        self._going = [look for look in self._going if look not in over]
        return [pair for look in over for pair in self._judge(look, nodes)]

    def _groups(self, names: Iterable[str], nodes: Mapping[str, int]) -> list[list[str]]:
        """Deal messages to looks, so that a node that stalls keeps few others waiting."""
        alone = [[name] for name in names if nodes[name] in self._alone]
        rest = [name for name in names if nodes[name] not in self._alone]
        return alone + [rest[k::APART] for k in range(min(APART, len(rest)))]

    def _judge(self, look: _Look, nodes: Mapping[str, int]) -> Iterator[tuple[str, Message | str]]:
        """Yield what a look brought.

        Where one of several replies is malformed, Flower loses the others with it, and nobody
        knows whose it was: their messages are told to have expired, so that all of them are asked
        again, and from then on each is looked for alone.
        """
        error = look.error
        if isinstance(error, TransportError):
            return  # a SuperLink that hangs: it is asked again
        if error is not None and (isinstance(error, HTTPError) or not isinstance(error, Exception)):
            raise error
        if error is not None and len(look.messages) == 1:
            said = single_line(f"{type(error).__name__}: {error}")
            yield look.messages[0], f"its reply is malformed: {said!r}"
        elif error is not None:
            self._alone |= {nodes[name] for name in look.messages if name in nodes}
        for reply in look.replies:
            name, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if name not in nodes:
                continue  # nobody waits for it any more
            if was_lost(reply) or node == nodes[name]:
                yield name, reply
            else:
                yield name, f"its reply says that it is from node {node}, not {nodes[name]}"


def was_lost(reply: Message) -> bool:
    """Whether the client could not answer, or its answer got lost on the way."""
    return reply.has_error() and (
        is_lost(reply.error) or reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    )


def push(grid: Grid, messages: list[Message]) -> set[str]:
    """Hand messages over; return the ids of those that were taken.

    Raises:
        HTTPError: the SuperLink refuses, such as because the run was stopped.
    """
    if not messages:
        return set()
    try:
        return {name for name in grid.push_messages(messages) if name}
    except (ObjectPushError, TransportError):  # it broke off: as if the messages had been lost
        return set()
