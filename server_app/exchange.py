"""One exchange of messages: ask clients, and wait for their replies for as long as agreed.

Flower's `send_and_receive` looks every three seconds, forgets who did not answer, and waits for
everybody or the deadline. Here a client whose process died or that went offline is asked again
(a reply depends on nothing but the message, so that changes no result), the first replies can be
enough, and a reply that comes too late is noticed when it comes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from common.types import ClientId, by_client
from server_app.reasons import is_lost, reason_of
from server_app.roster import Roster

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks for replies
LOOK_SECONDS = 1.0  # between two looks at who is there
SETTLE_SECONDS = 2.0  # before a lost client is asked again: until then it may still look present
NOT_PUSHED = "the order could not be handed to it: its node is gone"
LATE = "no reply within the round's deadline"


@dataclass
class Answers:
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
    round: int
    deadline: float


@dataclass(frozen=True)
class _Lost:
    reason: str
    since: float


@dataclass(frozen=True)
class Terms:
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


class Post:
    """Sends orders and collects replies, and remembers which ones are overdue."""

    def __init__(self) -> None:
        self._overdue: dict[str, _Sent] = {}
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
        roster: Callable[[Grid], Roster],
        terms: Terms,
        *,
        round: int,  # noqa: A002
        watch: Callable[[Answers], None] = lambda _: None,
    ) -> Answers:
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
        answers, tries = Answers(), dict.fromkeys(contents, 0)
        pending: dict[str, ClientId] = {}
        lost: dict[ClientId, _Lost] = {}
        group = str(round)
        self._send(grid, kind, group, contents, roster(grid), terms.timeout, pending, lost)
        for pause in _pauses():
            for reply in self._pull(grid, pending):
                client = pending.pop(reply.metadata.reply_to_message_id)
                if not (reply.has_error() and is_lost(reply.error)):
                    answers.replies[client] = reply
                    answers.seconds[client] = time.monotonic() - begin
                elif tries[client] < terms.retries:
                    lost[client] = _Lost(reason_of(reply.error), time.monotonic())
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
                    self._send(grid, kind, group, back, there, deadline - now, pending, lost)
            time.sleep(max(0.0, min(pause, deadline - now)))
        answers.missing |= dict.fromkeys(pending.values(), why)
        answers.missing |= {client: one.reason for client, one in lost.items()}
        self._overdue |= {mid: _Sent(client, round, deadline) for mid, client in pending.items()}
        return answers

    def _send(
        self,
        grid: Grid,
        kind: str,
        group: str,
        contents: Mapping[ClientId, RecordDict],
        roster: Roster,
        ttl: float,
        pending: dict[str, ClientId],
        lost: dict[ClientId, "_Lost"],
    ) -> None:
        """Push a message to each client; who has no node counts as lost.

        The messages expire with the deadline: a client that was cut off must not work through
        old orders when it comes back.
        """
        messages = {
            client: Message(content, roster.nodes[client], kind, group_id=group, ttl=max(ttl, 1.0))
            for client, content in contents.items()
            if client in roster.nodes
        }
        taken = set(grid.push_messages(list(messages.values()))) if messages else set()
        for client in contents:
            name = messages[client].metadata.message_id if client in messages else ""
            if name in taken:
                pending[name] = client
            else:
                lost[client] = _Lost(NOT_PUSHED, time.monotonic())

    def _pull(self, grid: Grid, pending: Mapping[str, ClientId]) -> list[Message]:
        """Return new replies to `pending`, in the clients' order; note what is overdue."""
        found = []
        for reply in grid.pull_messages([*pending, *self._overdue]):
            sent = self._overdue.pop(reply.metadata.reply_to_message_id, None)
            if sent is None:
                found.append(reply)
            elif not reply.has_error():
                after = time.monotonic() - sent.deadline
                when = f"{after:.1f} s after the deadline" if after > 0 else "when it was over"
                self.late[sent.client] = f"its reply to round {sent.round} came {when}"
        known = [reply for reply in found if reply.metadata.reply_to_message_id in pending]
        return sorted(known, key=lambda r: by_client(pending[r.metadata.reply_to_message_id]))


def _spare(enough: int) -> str:
    return f"not among the first {enough} replies"


def _pauses() -> Iterator[float]:
    pause = SHORTEST_PAUSE
    while True:
        yield pause
        pause = min(1.5 * pause, LONGEST_PAUSE)
