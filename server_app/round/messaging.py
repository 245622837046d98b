"""Messenger: sends one message to each client and waits for the replies.

Flower's `send_and_receive` polls every three seconds, does not say which clients did not reply,
and waits for all clients or the deadline. This module differs:

- It sends the message again to a client whose process died or whose node went offline. A reply
  depends on nothing but the message, so this changes no result.
- The first replies can be enough.
- It records a reply that comes after the deadline.
- A client whose upload stalls, or whose reply cannot be read, delays no other client.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common.flower_internals import ErrorCode
from common.types import ClientId, by_client
from common.wire.messages import LATE_SECONDS
from server_app.round.bounded_pull import ReplyLimit
from server_app.round.error_reasons import reason_of
from server_app.round.polling import ReplyPoller, push_messages, was_lost
from server_app.round.ready_clients import ReadyClients

PAUSE = 0.02  # between two polls, as a share of the time waited so far
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.4  # seconds
LOOK_SECONDS = 1.0  # between two calls of the registry
SETTLE_SECONDS = 2.0  # before a message is sent again. A lost node may still seem connected
NOT_PUSHED = "the order could not be handed to it: its node is gone"
LATE = "no reply within the round's deadline"


@dataclass
class Replies:
    """The result of an exchange.

    Attributes:
        replies: the reply by client.
        seconds: seconds from the message to the reply, by client.
        missing: the reason why a reply is missing, by client.
        again: clients that got the message more than once.
    """

    replies: dict[ClientId, Message] = field(default_factory=dict)
    seconds: dict[ClientId, float] = field(default_factory=dict)
    missing: dict[ClientId, str] = field(default_factory=dict)
    again: list[ClientId] = field(default_factory=list)


@dataclass(frozen=True)
class _Sent:
    client: ClientId
    node: int
    round: int
    deadline: float


@dataclass(frozen=True)
class _Lost:
    reason: str
    since: float


@dataclass(frozen=True)
class ExchangeLimits:
    """How long and for how many replies an exchange waits.

    Attributes:
        timeout: seconds until the deadline.
        enough: number of replies without error that ends the exchange, or None to wait
            for all.
        retries: how often the message is sent again to a client that was lost.
        patience: seconds in which a client that went offline may come back.
        reply: the size that a reply may have.
    """

    timeout: float
    enough: int | None = None
    retries: int = 0
    patience: float = 60.0
    reply: ReplyLimit = field(default_factory=ReplyLimit)


class Messenger:
    """Sends messages and collects replies. Remembers the overdue messages of earlier exchanges."""

    def __init__(self) -> None:
        self.overdue: dict[str, _Sent] = {}
        self.poller = ReplyPoller()
        self.late: dict[ClientId, str] = {}  # late replies since the last `take_late`

    def take_late(self) -> dict[ClientId, str]:
        """Return and forget which replies came too late."""
        taken, self.late = self.late, {}
        return taken

    def exchange(
        self,
        grid: Grid,
        kind: str,
        contents: Mapping[ClientId, RecordDict],
        registry: Callable[[Grid], ReadyClients],
        limits: ExchangeLimits,
        *,
        round: int,  # noqa: A002
        watch: Callable[[Replies], None] = lambda _: None,
    ) -> Replies:
        """Send one message to each client and return the replies.

        Args:
            grid: Flower's grid.
            kind: Flower's message type.
            contents: content of the message to each client.
            registry: returns the node of each client. Called again while waiting.
            limits: when the exchange ends.
            round: number of the round, for the sentences about late replies.
            watch: called whenever something may have changed.
        """
        exchange = _Exchange(self, grid, kind, contents, limits, round)
        looked = time.monotonic()
        exchange.send(contents, registry(grid))
        while True:
            pause = pause_after(time.monotonic() - exchange.begin)
            exchange.receive(pause)
            watch(exchange.replies)
            now = time.monotonic()
            exchange.give_up_offline_clients(now)
            if reason := exchange.end_reason(now):
                break
            if exchange.lost or now - looked > LOOK_SECONDS:
                ready, looked = registry(grid), now
                exchange.send_again(ready, now)
            time.sleep(max(0.0, min(pause, exchange.deadline - now)))
        return exchange.end(reason)

    def poll(
        self, grid: Grid, pending: Mapping[str, _Sent], timeout: float, limit: ReplyLimit
    ) -> list[tuple[str, Message | str]]:
        """Return new replies to `pending`, sorted by client, and record late replies.

        A text in place of a reply is the reason why the reply cannot be read.
        """
        nodes = {name: sent.node for name, sent in {**self.overdue, **pending}.items()}
        found = self.poller.take(grid, nodes, timeout, limit)
        for name, reply in found:
            if (sent := self.overdue.pop(name, None)) and _is_from_client(reply):
                after = time.monotonic() - sent.deadline
                when = f"{after:.1f} s after the deadline" if after > 0 else "when it was over"
                self.late[sent.client] = f"its reply to round {sent.round} came {when}"
        known = [(name, reply) for name, reply in found if name in pending]
        return sorted(known, key=lambda pair: by_client(pending[pair[0]].client))


class _Exchange:
    """The state of one exchange while it goes on."""

    def __init__(
        self,
        messenger: Messenger,
        grid: Grid,
        kind: str,
        contents: Mapping[ClientId, RecordDict],
        limits: ExchangeLimits,
        round: int,  # noqa: A002
    ) -> None:
        self.messenger, self.grid, self.kind, self.round = messenger, grid, kind, round
        self.contents, self.limits = contents, limits
        self.begin = time.monotonic()
        self.deadline = self.begin + limits.timeout
        self.replies = Replies()
        self.pending: dict[str, _Sent] = {}  # by message id
        self.lost: dict[ClientId, _Lost] = {}
        self.tries = dict.fromkeys(contents, 0)

    def send(self, contents: Mapping[ClientId, RecordDict], ready: ReadyClients) -> None:
        """Send a message to each client that has a node. The others are lost.

        The messages expire soon after the deadline: a client that was cut off must not work on
        old orders when it comes back.
        """
        ttl = max(self.deadline - time.monotonic(), 0.0) + LATE_SECONDS
        connected = [client for client in contents if client in ready.nodes]
        messages = [
            Message(contents[c], ready.nodes[c], self.kind, group_id=str(self.round), ttl=ttl)
            for c in connected
        ]
        accepted = push_messages(self.grid, messages)
        sent = {
            message.metadata.message_id: _Sent(
                client, ready.nodes[client], self.round, self.deadline
            )
            for client, message in zip(connected, messages, strict=True)
            if message.metadata.message_id in accepted
        }
        self.pending.update(sent)
        receivers, now = {one.client for one in sent.values()}, time.monotonic()
        self.lost.update({c: _Lost(NOT_PUSHED, now) for c in contents if c not in receivers})

    def receive(self, timeout: float) -> None:
        """Take the replies that arrived."""
        replies = self.replies
        limit = self.limits.reply
        for name, reply in self.messenger.poll(self.grid, self.pending, timeout, limit):
            client, now = self.pending.pop(name).client, time.monotonic()
            if isinstance(reply, str):
                replies.missing[client] = reply
            elif not was_lost(reply):
                replies.replies[client] = reply
                replies.seconds[client] = now - self.begin
            elif self.tries[client] < self.limits.retries:
                self.lost[client] = _Lost(reason_of(reply.error), now)
            else:
                replies.missing[client] = reason_of(reply.error)

    def give_up_offline_clients(self, now: float) -> None:
        """Give up the clients that have been offline for too long."""
        patience = self.limits.patience
        for client in [c for c, lost in self.lost.items() if now - lost.since > patience]:
            self.replies.missing[client] = self.lost.pop(client).reason

    def end_reason(self, now: float) -> str:
        """Return why replies are missing if the exchange is over, else ""."""
        enough, replies = self.limits.enough, self.replies
        good = [c for c, reply in replies.replies.items() if not reply.has_error()]
        if enough is not None and len(good) >= enough:
            reason = f"not among the first {enough} replies"
            for client in good[enough:]:  # of one poll: the first by client id are kept
                del replies.replies[client]
                replies.missing[client] = reason
            return reason
        return LATE if now >= self.deadline or not (self.pending or self.lost) else ""

    def send_again(self, ready: ReadyClients, now: float) -> None:
        """Send the message again to lost clients that are connected."""
        settled = [c for c, lost in self.lost.items() if now - lost.since > SETTLE_SECONDS]
        back = {c: self.contents[c] for c in settled if c in ready.nodes}
        if not back:
            return
        for client in back:
            del self.lost[client]
            self.tries[client] += 1
            self.replies.again.append(client)
        self.send(back, ready)

    def end(self, reason: str) -> Replies:
        """Return the result. What is still pending is overdue from now on."""
        replies = self.replies
        replies.missing |= {sent.client: reason for sent in self.pending.values()}
        replies.missing |= {client: lost.reason for client, lost in self.lost.items()}
        self.messenger.overdue |= self.pending
        return replies


def _is_from_client(reply: Message | str) -> bool:
    """Whether the client itself replied. Flower replies in place of a client that it lost."""
    if not isinstance(reply, Message):
        return False
    return not reply.has_error() or reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION


def pause_after(waited: float) -> float:
    """Return the seconds until the next poll, given the seconds waited so far."""
    return min(max(SHORTEST_PAUSE, PAUSE * waited), LONGEST_PAUSE)
