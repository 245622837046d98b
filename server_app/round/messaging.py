"""One exchange of messages: ask clients, and wait for their replies for as long as agreed.

Flower's `send_and_receive` looks every three seconds, forgets who did not answer, and waits for
everybody or the deadline. Here a client whose process died or that went offline is asked again
(a reply depends on nothing but the message, so that changes no result), the first replies can be
enough, and a reply that comes too late is noticed when it comes. One client whose upload stalls,
or whose reply cannot be read, holds up nobody.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from common.types import ClientId, by_client
from common.wire.messages import LATE_SECONDS
from server_app.round.client_registry import ReadyClients
from server_app.round.error_reasons import reason_of
from server_app.round.polling import Looks, push, was_lost

PAUSE = 0.02  # between two looks for replies, as a share of the time waited so far
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.4  # seconds
LOOK_SECONDS = 1.0  # between two looks at who is there
SETTLE_SECONDS = 2.0  # before a lost client is asked again: until then it may still look present
NOT_PUSHED = "the order could not be handed to it: its node is gone"
LATE = "no reply within the round's deadline"


@dataclass
class Replies:
    """What an exchange brought.

    Attributes:
        replies: by client.
        seconds: from the order to the reply, by client.
        missing: why there is no reply, by client.
        again: clients that were asked more than once.
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
    """How long and for whom an exchange waits.

    Attributes:
        timeout: seconds until the deadline.
        enough: this many replies that are no errors end the wait; None waits for all.
        retries: times a client is asked again that was lost.
        patience: seconds that a client which went offline has to come back.
    """

    timeout: float
    enough: int | None = None
    retries: int = 0
    patience: float = 60.0


class Messenger:
    """Sends orders and collects replies, and remembers which ones are overdue."""

    def __init__(self) -> None:
        self._overdue: dict[str, _Sent] = {}
        self._looks = Looks()
        self.late: dict[ClientId, str] = {}  # what came too late since `take_late`

    def take_late(self) -> dict[ClientId, str]:
        """Return and forget which replies came too late."""
        taken, self.late = self.late, {}
        return taken

    def exchange(
        self,
        grid: Grid,
        kind: str,
        contents: Mapping[ClientId, RecordDict],
        roster: Callable[[Grid], ReadyClients],
        terms: ExchangeLimits,
        *,
        round: int,  # noqa: A002
        watch: Callable[[Replies], None] = lambda _: None,
    ) -> Replies:
        """Send one message a client and return what came back.

        Args:
            grid: Flower's grid.
            kind: type of the messages, "train" or "evaluate".
            contents: what each client gets.
            roster: tells on which node a client is now; asked again while waiting.
            terms: until when.
            round: for the notes on late replies.
            watch: called whenever something may have changed.
        """
        begin = looked = time.monotonic()
        deadline = begin + terms.timeout
        answers, tries = Replies(), dict.fromkeys(contents, 0)
        pending: dict[str, _Sent] = {}
        lost: dict[ClientId, _Lost] = {}

        def send(contents: Mapping[ClientId, RecordDict], there: ReadyClients) -> None:
            sent = self._send(grid, kind, contents, there, round, deadline)
            pending.update(sent)
            known = {one.client for one in sent.values()}
            now = time.monotonic()
            lost.update({c: _Lost(NOT_PUSHED, now) for c in contents if c not in known})

        send(contents, roster(grid))
        while True:
            pause = pause_after(time.monotonic() - begin)
            for name, reply in self._pull(grid, pending, pause):
                client, now = pending.pop(name).client, time.monotonic()
                if isinstance(reply, str):
                    answers.missing[client] = reply
                elif not was_lost(reply):
                    answers.replies[client] = reply
                    answers.seconds[client] = now - begin
                elif tries[client] < terms.retries:
                    lost[client] = _Lost(reason_of(reply.error), now)
                else:
                    answers.missing[client] = reason_of(reply.error)
            watch(answers)
            good = [c for c, reply in answers.replies.items() if not reply.has_error()]
            now = time.monotonic()
            for client in [c for c, one in lost.items() if now - one.since > terms.patience]:
                answers.missing[client] = lost.pop(client).reason
            if terms.enough is not None and len(good) >= terms.enough:
                why = _spare(terms.enough)
                for client in good[terms.enough :]:  # of one look: the first by id are kept
                    del answers.replies[client]
                    answers.missing[client] = why
                break
            if now >= deadline or not (pending or lost):
                why = LATE
                break
            if lost or now - looked > LOOK_SECONDS:
                there, looked = roster(grid), now
                settled = [c for c, one in lost.items() if now - one.since > SETTLE_SECONDS]
                if back := {c: contents[c] for c in settled if c in there.nodes}:
                    for client in back:
                        del lost[client]
                        tries[client] += 1
                        answers.again.append(client)
                    send(back, there)
            time.sleep(max(0.0, min(pause, deadline - now)))
        answers.missing |= {sent.client: why for sent in pending.values()}
        answers.missing |= {client: one.reason for client, one in lost.items()}
        self._overdue |= pending
        return answers

    def _send(
        self,
        grid: Grid,
        kind: str,
        contents: Mapping[ClientId, RecordDict],
        roster: ReadyClients,
        round: int,  # noqa: A002
        deadline: float,
    ) -> dict[str, _Sent]:
        """Push a message to each client that has a node; return those that were taken.

        The messages expire soon after the deadline: a client that was cut off must not work
        through old orders when it comes back.
        """
        ttl = max(deadline - time.monotonic(), 0.0) + LATE_SECONDS
        there = [client for client in contents if client in roster.nodes]
        messages = [
            Message(contents[c], roster.nodes[c], kind, group_id=str(round), ttl=ttl) for c in there
        ]
        taken = push(grid, messages)
        return {
            message.metadata.message_id: _Sent(client, roster.nodes[client], round, deadline)
            for client, message in zip(there, messages, strict=True)
            if message.metadata.message_id in taken
        }

    def _pull(
        self, grid: Grid, pending: Mapping[str, _Sent], patience: float
    ) -> list[tuple[str, Message | str]]:
        """Return new replies to `pending` in the clients' order, or why one is none.

        What is overdue and comes is noted.
        """
        nodes = {name: sent.node for name, sent in {**self._overdue, **pending}.items()}
        found = self._looks.take(grid, nodes, patience)
        for name, reply in found:
            if (sent := self._overdue.pop(name, None)) and _is_answer(reply):
                after = time.monotonic() - sent.deadline
                when = f"{after:.1f} s after the deadline" if after > 0 else "when it was over"
                self.late[sent.client] = f"its reply to round {sent.round} came {when}"
        known = [(name, reply) for name, reply in found if name in pending]
        return sorted(known, key=lambda pair: by_client(pending[pair[0]].client))


def _is_answer(reply: Message | str) -> bool:
    """Say whether the client itself replied; Flower replies too, for one that it has lost."""
    if not isinstance(reply, Message):
        return False
    return not reply.has_error() or reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION


def _spare(enough: int) -> str:
    return f"not among the first {enough} replies"


def pause_after(waited: float) -> float:
    """Return the seconds until the next look for replies, which may come that much too late."""
    return min(max(SHORTEST_PAUSE, PAUSE * waited), LONGEST_PAUSE)
