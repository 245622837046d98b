"""Orders and replies: nobody is waited for without end, and nobody is forgotten."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from server_app.exchange import LATE, NOT_PUSHED, Answers, Post, Terms
from server_app.roster import Roster

pytestmark = pytest.mark.usefixtures("flower_identity")

OFFLINE = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
CRASHED = Error(ErrorCode.CLIENT_APP_CRASHED, "ClientApp stopped responding.")
RAISED = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no data")
NEVER = 1e9


@pytest.fixture(autouse=True)
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a lost client again without the pause in which it may still look present."""
    monkeypatch.setattr("server_app.exchange.SETTLE_SECONDS", 0.0)


@dataclass
class Wire:
    """A grid that answers each order after some seconds, first try, second try, ..."""

    script: dict[str, list[tuple[float, Error | None]]]
    nodes: dict[str, int] = field(default_factory=dict)
    pushed: list[tuple[str, Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = {client: 100 + k for k, client in enumerate(self.script)}
        self.due: dict[str, tuple[float, Message, Error | None]] = {}

    def roster(self, _: object) -> Roster:
        return Roster.of(self.nodes)

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
        self, terms: Terms, post: Post | None = None, watch: Callable[[Answers], None] = print
    ) -> Answers:
        contents = {c: RecordDict({"config": ConfigRecord({"to": c})}) for c in self.nodes}
        return (post or Post()).exchange(
            self, "train", contents, self.roster, terms, round=7, watch=watch
        )


def test_all_replies_are_returned_with_their_seconds() -> None:
    answers = Wire({"b": [(0.1, None)], "a": [(0, None)]}).exchange(Terms(5))
    assert list(answers.replies) == ["a", "b"]
    assert answers.seconds["b"] >= 0.1 > answers.seconds["a"]
    assert (answers.missing, answers.again) == ({}, [])


def test_the_deadline_holds_whoever_is_silent_and_a_late_reply_is_noticed_later() -> None:
    wire, post, begin = Wire({"a": [(0, None)], "b": [(0.4, None)]}), Post(), time.monotonic()
    answers = wire.exchange(Terms(0.2), post)
    assert 0.2 <= time.monotonic() - begin < 0.4
    assert list(answers.replies) == ["a"]
    assert answers.missing == {"b": LATE}
    assert post.take_late() == {}
    time.sleep(0.3)
    wire.script = {"a": [(0, None)], "b": [(0, None)]}
    assert list(wire.exchange(Terms(5), post).replies) == ["a", "b"], "the old one is not taken"
    assert post.take_late()["b"].startswith("its reply to round 7 came 0.")
    assert post.take_late() == {}


def test_messages_expire_with_the_deadline_and_bear_the_round() -> None:
    wire = Wire({"a": [(0, None)]})
    wire.exchange(Terms(50.0))
    [(_, message)] = wire.pushed
    assert message.metadata.ttl == pytest.approx(50, abs=0.1)
    assert message.metadata.group_id == "7"


@pytest.mark.parametrize("error", [OFFLINE, CRASHED], ids=["offline", "crashed"])
def test_a_client_that_was_lost_is_asked_again_with_the_same_content(error: Error) -> None:
    wire = Wire({"a": [(0, error), (0, None)], "b": [(0, None)]})
    answers = wire.exchange(Terms(5, retries=1))
    assert not answers.replies["a"].has_error()
    assert answers.again == ["a"]
    first, second = (message for client, message in wire.pushed if client == "a")
    assert first.content == second.content


def test_it_is_asked_only_so_often() -> None:
    answers = Wire({"a": [(0, CRASHED)] * 3}).exchange(Terms(5, retries=2))
    assert answers.replies == {}
    assert answers.again == ["a", "a"]
    assert answers.missing == {"a": "its process died: ClientApp stopped responding."}


def test_an_error_of_the_client_itself_is_its_reply() -> None:
    wire = Wire({"a": [(0, RAISED)]})
    assert wire.exchange(Terms(5, retries=3)).replies["a"].error.reason == "no data"
    assert len(wire.pushed) == 1


def test_a_client_that_went_offline_is_asked_when_it_is_back_on_whatever_node() -> None:
    wire = Wire({"a": [(0, OFFLINE), (0, None)]})
    begin = time.monotonic()

    def watch(answers: Answers) -> None:
        wire.nodes = {} if time.monotonic() - begin < 0.3 else {"a": 555}

    answers = wire.exchange(Terms(5, retries=1), watch=watch)
    assert answers.replies["a"].metadata.src_node_id == 555
    assert answers.seconds["a"] >= 0.3


def test_a_client_that_only_looks_present_is_not_asked_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its node is told to be there for a moment after it was lost."""
    monkeypatch.setattr("server_app.exchange.SETTLE_SECONDS", 0.3)
    wire = Wire({"a": [(0, OFFLINE), (0, None)]})
    begin = time.monotonic()

    def watch(answers: Answers) -> None:
        now = time.monotonic() - begin
        wire.nodes = {} if 0.2 < now < 0.5 else {"a": 100}

    answers = wire.exchange(Terms(5, retries=1), watch=watch)
    assert list(answers.replies) == ["a"]
    assert answers.seconds["a"] >= 0.5


def test_patience_with_a_client_that_stays_away_is_shorter_than_the_round() -> None:
    wire, begin = Wire({"a": [(0, OFFLINE)], "b": [(0.1, None)]}), time.monotonic()

    def watch(answers: Answers) -> None:
        wire.nodes.pop("a", None)

    answers = wire.exchange(Terms(60, retries=3, patience=0.3), watch=watch)
    assert time.monotonic() - begin < 3
    assert answers.missing == {"a": "it went offline"}
    assert list(answers.replies) == ["b"]


def test_a_client_that_was_never_there_counts_as_lost() -> None:
    wire = Wire({"a": [(0, None)], "b": []})
    del wire.nodes["b"]
    contents = {c: RecordDict() for c in "ab"}
    answers = Post().exchange(wire, "train", contents, wire.roster, Terms(5, patience=0.0), round=1)
    assert answers.missing == {"b": NOT_PUSHED}


def test_the_first_replies_are_enough_and_the_others_are_told_so() -> None:
    wire, begin = (
        Wire({"a": [(NEVER, None)], "b": [(0, RAISED)], "c": [(0, None)]}),
        time.monotonic(),
    )
    wire.script["d"], wire.nodes["d"] = [(0.05, None)], 900
    answers = wire.exchange(Terms(30, enough=2))
    assert time.monotonic() - begin < 5
    assert set(answers.replies) == {"b", "c", "d"}, "an error is no reply that counts"
    assert answers.missing == {"a": "not among the first 2 replies"}


def test_of_replies_that_come_at_once_the_first_by_name_are_kept() -> None:
    answers = Wire({"10": [(0, None)], "9": [(0, None)], "2": [(0, None)]}).exchange(
        Terms(5, enough=2)
    )
    assert list(answers.replies) == ["2", "9"]
    assert answers.missing == {"10": "not among the first 2 replies"}


def test_a_watcher_sees_who_has_answered_while_others_are_awaited() -> None:
    seen: list[list[str]] = []
    wire = Wire({"a": [(0, None)], "b": [(0.2, None)]})
    wire.exchange(Terms(5), watch=lambda answers: seen.append(list(answers.replies)))
    assert ["a"] in seen
    assert seen[-1] == ["a", "b"]
