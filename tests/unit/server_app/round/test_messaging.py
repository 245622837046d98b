"""Orders and replies: nobody is waited for without end, and nobody is forgotten."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.run import RunNotRunningException
from httpx import ConnectTimeout, HTTPError

from common.wire.messages import LATE_SECONDS
from server_app.round.messaging import (
    LATE,
    NOT_PUSHED,
    ExchangeLimits,
    Messenger,
    Replies,
    pause_after,
)
from server_app.round.polling import PARALLEL_POLLS
from server_app.round.ready_clients import ReadyClients

pytestmark = pytest.mark.usefixtures("flower_identity")

OFFLINE = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
CRASHED = Error(ErrorCode.CLIENT_APP_CRASHED, "ClientApp stopped responding.")
RAISED = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no data")
EXPIRED = Error(ErrorCode.MESSAGE_UNAVAILABLE, "expired")
NEVER = 1e9


@pytest.fixture(autouse=True)
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a lost client again without the pause in which it may still look present."""
    monkeypatch.setattr("server_app.round.messaging.SETTLE_SECONDS", 0.0)


@dataclass
class Wire:
    """A grid that answers each order after some seconds, first try, second try, ..."""

    script: dict[str, list[tuple[float, Error | None]]]
    nodes: dict[str, int] = field(default_factory=dict)
    pushed: list[tuple[str, Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = {client: 100 + k for k, client in enumerate(self.script)}
        self.due: dict[str, tuple[float, Message, Error | None]] = {}

    def roster(self, _: object) -> ReadyClients:
        return ReadyClients.of(self.nodes)

    def push_messages(self, messages: list[Message]) -> list[str]:
        names = {node: client for client, node in self.nodes.items()}
        ids = []
        for message in messages:
            client = names[message.metadata.dst_node_id]
            self.pushed.append((client, message))
            name = message.metadata.__dict__["_message_id"] = f"{client}-{len(self.pushed)}"
            after, error = self.script[client].pop(0)
            self.due[name] = time.monotonic() + after, message, error
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        now = time.monotonic()
        ready = [name for name in message_ids if name in self.due and self.due[name][0] <= now]
        replies = []
        for name in reversed(ready):  # an order of its own
            _, message, error = self.due.pop(name)
            replies.append(Message(error or RecordDict(), reply_to=message))
        return replies

    def exchange(
        self,
        terms: ExchangeLimits,
        post: Messenger | None = None,
        watch: Callable[[Replies], None] = print,
    ) -> Replies:
        contents = {c: RecordDict({"config": ConfigRecord({"to": c})}) for c in self.nodes}
        return (post or Messenger()).exchange(
            self, "train", contents, self.roster, terms, round=7, watch=watch
        )


def test_all_replies_are_returned_with_their_seconds() -> None:
    answers = Wire({"b": [(0.1, None)], "a": [(0, None)]}).exchange(ExchangeLimits(5))
    assert list(answers.replies) == ["a", "b"]
    assert answers.seconds["b"] >= 0.1 > answers.seconds["a"]
    assert (answers.missing, answers.again) == ({}, [])


def test_a_silent_client_does_not_move_the_deadline_and_its_late_reply_is_recorded() -> None:
    wire, post, begin = Wire({"a": [(0, None)], "b": [(0.4, None)]}), Messenger(), time.monotonic()
    answers = wire.exchange(ExchangeLimits(0.2), post)
    assert 0.2 <= time.monotonic() - begin < 0.4
    assert list(answers.replies) == ["a"]
    assert answers.missing == {"b": LATE}
    assert post.take_late() == {}
    time.sleep(0.3)
    wire.script = {"a": [(0, None)], "b": [(0, None)]}
    assert list(wire.exchange(ExchangeLimits(5), post).replies) == ["a", "b"], (
        "the old one is not taken"
    )
    assert post.take_late()["b"].startswith("its reply to round 7 came 0.")
    assert post.take_late() == {}


def test_messages_expire_soon_after_the_deadline_and_bear_the_round() -> None:
    wire = Wire({"a": [(0, None)]})
    wire.exchange(ExchangeLimits(50.0))
    [(_, message)] = wire.pushed
    assert message.metadata.ttl == pytest.approx(50 + LATE_SECONDS, abs=0.1)
    assert message.metadata.group_id == "7"


@pytest.mark.parametrize("error", [OFFLINE, CRASHED], ids=["offline", "crashed"])
def test_a_client_that_was_lost_is_asked_again_with_the_same_content(error: Error) -> None:
    wire = Wire({"a": [(0, error), (0, None)], "b": [(0, None)]})
    answers = wire.exchange(ExchangeLimits(5, retries=1))
    assert not answers.replies["a"].has_error()
    assert answers.again == ["a"]
    first, second = (message for client, message in wire.pushed if client == "a")
    assert first.content == second.content


def test_a_lost_client_gets_the_message_at_most_retries_times_again() -> None:
    answers = Wire({"a": [(0, CRASHED)] * 3}).exchange(ExchangeLimits(5, retries=2))
    assert answers.replies == {}
    assert answers.again == ["a", "a"]
    assert answers.missing == {"a": "its process died: ClientApp stopped responding."}


def test_an_error_of_the_client_itself_is_its_reply() -> None:
    wire = Wire({"a": [(0, RAISED)]})
    assert wire.exchange(ExchangeLimits(5, retries=3)).replies["a"].error.reason == "no data"
    assert len(wire.pushed) == 1


def test_a_client_that_went_offline_is_asked_when_it_is_back_on_whatever_node() -> None:
    wire = Wire({"a": [(0, OFFLINE), (0, None)]})
    begin = time.monotonic()

    def watch(answers: Replies) -> None:
        wire.nodes = {} if time.monotonic() - begin < 0.3 else {"a": 555}

    answers = wire.exchange(ExchangeLimits(5, retries=1), watch=watch)
    assert answers.replies["a"].metadata.src_node_id == 555
    assert answers.seconds["a"] >= 0.3


def test_a_client_that_only_looks_present_is_not_asked_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its node is told to be there for a moment after it was lost."""
    monkeypatch.setattr("server_app.round.messaging.SETTLE_SECONDS", 0.3)
    wire = Wire({"a": [(0, OFFLINE), (0, None)]})
    begin = time.monotonic()

    def watch(answers: Replies) -> None:
        now = time.monotonic() - begin
        wire.nodes = {} if 0.2 < now < 0.5 else {"a": 100}

    answers = wire.exchange(ExchangeLimits(5, retries=1), watch=watch)
    assert list(answers.replies) == ["a"]
    assert answers.seconds["a"] >= 0.5


def test_patience_with_a_client_that_stays_away_is_shorter_than_the_round() -> None:
    wire, begin = Wire({"a": [(0, OFFLINE)], "b": [(0.1, None)]}), time.monotonic()

    def watch(answers: Replies) -> None:
        wire.nodes.pop("a", None)

    answers = wire.exchange(ExchangeLimits(60, retries=3, patience=0.3), watch=watch)
    assert time.monotonic() - begin < 3
    assert answers.missing == {"a": "it went offline"}
    assert list(answers.replies) == ["b"]


def test_a_client_that_was_never_there_counts_as_lost() -> None:
    wire = Wire({"a": [(0, None)], "b": []})
    del wire.nodes["b"]
    contents = {c: RecordDict() for c in "ab"}
    answers = Messenger().exchange(
        wire, "train", contents, wire.roster, ExchangeLimits(5, patience=0.0), round=1
    )
    assert answers.missing == {"b": NOT_PUSHED}


def test_the_first_replies_are_enough_and_the_others_are_told_so() -> None:
    wire, begin = (
        Wire({"a": [(NEVER, None)], "b": [(0, RAISED)], "c": [(0, None)]}),
        time.monotonic(),
    )
    wire.script["d"], wire.nodes["d"] = [(0.05, None)], 900
    answers = wire.exchange(ExchangeLimits(30, enough=2))
    assert time.monotonic() - begin < 5
    assert set(answers.replies) == {"b", "c", "d"}, "an error is no reply that counts"
    assert answers.missing == {"a": "not among the first 2 replies"}


def test_of_replies_that_come_at_once_the_first_by_name_are_kept() -> None:
    answers = Wire({"10": [(0, None)], "9": [(0, None)], "2": [(0, None)]}).exchange(
        ExchangeLimits(5, enough=2)
    )
    assert list(answers.replies) == ["2", "9"]
    assert answers.missing == {"10": "not among the first 2 replies"}


def test_a_watcher_sees_who_has_answered_while_others_are_awaited() -> None:
    seen: list[list[str]] = []
    wire = Wire({"a": [(0, None)], "b": [(1.0, None)]})
    wire.exchange(ExchangeLimits(5), watch=lambda answers: seen.append(list(answers.replies)))
    assert ["a"] in seen
    assert seen[-1] == ["a", "b"]


@dataclass
class Flower(Wire):
    """As Flower's own grid with clients that mean no good.

    Who `stalls` begins to upload a reply and goes on with it for some seconds, in which a look that
    includes it does not return. Who is `malformed` sends what cannot be read: the look raises, and
    the other replies that it should have brought are gone.
    """

    stalls: dict[str, float] = field(default_factory=dict)
    malformed: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    nobody: Exception | None = None  # answers looks
    deaf: Exception | None = None  # to orders
    looks: list[list[str]] = field(default_factory=list)

    def push_messages(self, messages: list[Message]) -> list[str]:
        if self.deaf:
            raise self.deaf
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        if self.nobody:
            raise self.nobody
        names = list(message_ids)
        self.looks.append(names)
        orders = dict(self.pushed_by_name)
        expired = [Message(EXPIRED, reply_to=orders[name]) for name in names if name in self.gone]
        replies = super().pull_messages(names)
        came = {reply.metadata.reply_to_message_id.partition("-")[0] for reply in replies}
        for client in came & self.stalls.keys():
            time.sleep(self.stalls.pop(client))
        if came & self.malformed:
            self.gone |= {reply.metadata.reply_to_message_id for reply in replies}
            raise ValueError("Expecting value: line 1 column 1 (char 0)")
        return [*expired, *replies]

    @property
    def pushed_by_name(self) -> Iterable[tuple[str, Message]]:
        return ((message.metadata.message_id, message) for _, message in self.pushed)


def test_an_upload_that_stalls_holds_up_neither_the_others_nor_the_deadline() -> None:
    wire = Flower({"a": [(0, None)], "b": [(0, None)], "c": [(0.2, None)]}, stalls={"b": 1.5})
    post, begin = Messenger(), time.monotonic()
    answers = wire.exchange(ExchangeLimits(0.6), post)
    assert time.monotonic() - begin < 1.0
    assert list(answers.replies) == ["a", "c"]
    assert answers.missing == {"b": LATE}
    time.sleep(1.2)
    wire.script = {client: [(0, None)] for client in "abc"}
    assert list(wire.exchange(ExchangeLimits(5), post).replies) == ["a", "b", "c"]
    assert post.take_late()["b"].startswith("its reply to round 7 came ")


def test_a_malformed_reply_costs_its_sender_alone() -> None:
    wire = Flower({"a": [(0, None)], "b": [(0, None)], "c": [(0, None)]}, malformed={"b"})
    answers = wire.exchange(ExchangeLimits(5, retries=2))
    assert set(answers.replies) == {"a", "c"}
    assert answers.missing.keys() == {"b"}
    assert answers.missing["b"].startswith("its reply is malformed: 'ValueError: Expecting value")


def test_where_many_are_looked_for_together_the_others_are_asked_again_once() -> None:
    clients = [f"c{k}" for k in range(3 * PARALLEL_POLLS)]
    wire = Flower({client: [(0, None)] * 3 for client in clients}, malformed={"c3"})
    post = Messenger()
    answers = wire.exchange(ExchangeLimits(30, retries=2), post)
    assert set(answers.replies) == {*clients} - {"c3"}
    assert answers.missing.keys() == {"c3"}
    of_its_look = [f"c{3 + PARALLEL_POLLS * k}" for k in range(3)]
    assert sorted(answers.again) == sorted(of_its_look)
    wire.looks.clear()
    answers = wire.exchange(ExchangeLimits(30, retries=2), post)
    assert (answers.missing.keys(), answers.again) == ({"c3"}, []), "now it is looked for alone"
    assert max(map(len, wire.looks)) > 1


def test_a_reply_from_another_node_than_was_asked_is_not_taken() -> None:
    wire = Wire({"a": [(0, None)], "b": [(0, None)]})

    class Forger:
        push_messages = wire.push_messages

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            replies = wire.pull_messages(message_ids)
            for reply in replies:
                reply.metadata.__dict__["_src_node_id"] = wire.nodes["b"]
            return replies

    contents = {client: RecordDict() for client in "ab"}
    answers = Messenger().exchange(
        Forger(), "train", contents, wire.roster, ExchangeLimits(5), round=1
    )
    assert list(answers.replies) == ["b"]
    assert answers.missing == {"a": "its reply says that it is from node 101, not 100"}


def test_a_reply_that_got_lost_on_its_way_is_asked_for_again() -> None:
    """As when the SuperLink is killed after it gave the reply out."""
    wire = Wire({"a": [(0, EXPIRED), (0, None)]})
    answers = wire.exchange(ExchangeLimits(5, retries=1))
    assert (list(answers.replies), answers.again) == (["a"], ["a"])


def test_a_superlink_that_hangs_for_a_while_costs_nobody_the_round() -> None:
    """Flower gives up at once where it takes a late TLS handshake for a wrong certificate."""
    hangs = ConnectTimeout("_ssl.c:989: The handshake operation timed out")
    wire, begin = Flower({"a": [(0, None)]}, nobody=hangs, deaf=hangs), time.monotonic()

    def watch(_: Replies) -> None:
        now = time.monotonic() - begin
        wire.deaf = hangs if now < 0.2 else None
        wire.nobody = hangs if now < 0.4 else None

    answers = wire.exchange(ExchangeLimits(5, retries=1), watch=watch)
    assert list(answers.replies) == ["a"]
    assert answers.seconds["a"] >= 0.4


@pytest.mark.parametrize("error", [HTTPError("refused"), RunNotRunningException()])
def test_that_the_run_is_over_at_the_superlink_ends_the_exchange(error: Exception) -> None:
    with pytest.raises(type(error)):
        Flower({"a": [(NEVER, None)]}, nobody=error).exchange(ExchangeLimits(5))


def test_a_round_is_at_most_a_few_per_cent_longer_than_its_replies_take() -> None:
    for waited in (0.0, 0.1, 0.5, 2.0, 8.0, 60.0, 3600.0):
        assert 0.01 <= pause_after(waited) <= max(0.02, 0.03 * waited)
    assert pause_after(3600.0) <= 0.5
