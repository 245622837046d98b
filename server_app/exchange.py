"""One exchange of messages: ask clients, and wait for their replies for as long as agreed.

Flower's `send_and_receive` looks every three seconds, forgets who did not answer, and waits for
everybody or the deadline. Here a client whose process died or that went offline is asked again
(a reply depends on nothing but the message, so that changes no result), the first replies can be
enough, and a reply that comes too late is noticed when it comes. One client whose upload stalls,
or whose reply cannot be read, holds up nobody.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from httpx import HTTPError  # what Flower's grid raises when the SuperLink itself refuses

from common.types import ClientId, by_client
from server_app.reasons import LONGEST, is_lost, reason_of
from server_app.roster import Roster

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks for replies
LOOK_SECONDS = 1.0  # between two looks at who is there
SETTLE_SECONDS = 2.0  # before a lost client is asked again: until then it may still look present
LATE_SECONDS = 30.0  # after the deadline, in which a reply is noticed though it is not used
APART = 8  # looks for replies that go on side by side
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
    node: int
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


class _Look:
    """One look for the replies to some messages, in a thread of its own.

    Flower waits in it for a reply that is still being uploaded, be that for hours, and trips over
    one that is malformed.
    """

    def __init__(self, grid: Grid, messages: list[str]) -> None:
        self.messages = messages
        self.replies: list[Message] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, args=(grid,), daemon=True)
        self.thread.start()

    def _work(self, grid: Grid) -> None:
        try:
            found = list(grid.pull_messages(self.messages))
            self.replies = [m for m in found if m.metadata.reply_to_message_id in self.messages]
        except BaseException as error:
            self.error = error


class Post:
    """Sends orders and collects replies, and remembers which ones are overdue."""

    def __init__(self) -> None:
        self._overdue: dict[str, _Sent] = {}
        self._looks: list[_Look] = []  # that go on
        self._alone: set[ClientId] = set()  # looked for one by one: one of them sent rubbish
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
        pending: dict[str, _Sent] = {}
        lost: dict[ClientId, _Lost] = {}

        def send(contents: Mapping[ClientId, RecordDict], there: Roster) -> None:
            sent = self._send(grid, kind, contents, there, round, deadline)
            pending.update(sent)
            known = {one.client for one in sent.values()}
            now = time.monotonic()
            lost.update({c: _Lost(NOT_PUSHED, now) for c in contents if c not in known})

        send(contents, roster(grid))
        for pause in _pauses():
            for name, reply in self._pull(grid, pending, pause):
                client, now = pending.pop(name).client, time.monotonic()
                if isinstance(reply, str):
                    answers.missing[client] = reply
                elif not _is_lost(reply):
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
        roster: Roster,
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
        taken = set(grid.push_messages(messages)) if messages else set()
        return {
            message.metadata.message_id: _Sent(client, roster.nodes[client], round, deadline)
            for client, message in zip(there, messages, strict=True)
            if message.metadata.message_id in taken
        }

    def _pull(
        self, grid: Grid, pending: Mapping[str, _Sent], patience: float
    ) -> list[tuple[str, Message | str]]:
        """Return new replies to `pending` in the clients' order, or why one is none.

        What is overdue and comes is noted. Looks that take longer than `patience` go on.
        """
        waited = {**pending, **self._overdue}
        busy = {name for look in self._looks for name in look.messages}
        for group in self._groups([n for n in pending if n not in busy], pending):
            self._looks.append(_Look(grid, group))
        if rest := [name for name in self._overdue if name not in busy]:
            self._looks.append(_Look(grid, rest))
        until = time.monotonic() + patience
        for look in self._looks:
            look.thread.join(max(0.0, until - time.monotonic()))
        over = [look for look in self._looks if not look.thread.is_alive()]
        self._looks = [look for look in self._looks if look not in over]
        found: list[tuple[str, Message | str]] = []
        for look in over:
            found += self._judge(look, waited)
        for name, reply in found:
            if (sent := self._overdue.pop(name, None)) and _is_content(reply):
                after = time.monotonic() - sent.deadline
                when = f"{after:.1f} s after the deadline" if after > 0 else "when it was over"
                self.late[sent.client] = f"its reply to round {sent.round} came {when}"
        known = [(name, reply) for name, reply in found if name in pending]
        return sorted(known, key=lambda pair: by_client(pending[pair[0]].client))

    def _groups(self, names: Iterable[str], sent: Mapping[str, _Sent]) -> list[list[str]]:
        """Deal messages to looks, so that a client that stalls keeps few others waiting."""
        alone = [[name] for name in names if sent[name].client in self._alone]
        rest = [name for name in names if sent[name].client not in self._alone]
        return alone + [rest[k::APART] for k in range(min(APART, len(rest)))]

    def _judge(
        self, look: _Look, waited: Mapping[str, _Sent]
    ) -> Iterator[tuple[str, Message | str]]:
        """Yield what a look brought.

        Where one of several replies is malformed, Flower loses the others with it, and nobody
        knows whose it was: their messages are told to have expired, so that all of them are asked
        again, and from then on each is looked for alone.

        Raises:
            BaseException: what ends the run, such as that it was stopped at the SuperLink.
        """
        error = look.error
        if error is not None and (isinstance(error, HTTPError) or not isinstance(error, Exception)):
            raise error
        if error is not None and len(look.messages) == 1:
            said = f"{type(error).__name__}: {error}"[:LONGEST]
            yield look.messages[0], f"its reply is malformed: {said!r}"
        elif error is not None:
            self._alone |= {waited[name].client for name in look.messages}
        for reply in look.replies:
            name, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if _is_lost(reply) or node == waited[name].node:
                yield name, reply
            else:
                yield name, f"its reply says that it is from node {node}, not {waited[name].node}"


def _is_content(reply: Message | str) -> bool:
    return isinstance(reply, Message) and not reply.has_error()


def _is_lost(reply: Message) -> bool:
    """Whether the client could not answer, or its answer got lost on the way."""
    return reply.has_error() and (
        is_lost(reply.error) or reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    )


def _spare(enough: int) -> str:
    return f"not among the first {enough} replies"


def _pauses() -> Iterator[float]:
    pause = SHORTEST_PAUSE
    while True:
        yield pause
        pause = min(1.5 * pause, LONGEST_PAUSE)
