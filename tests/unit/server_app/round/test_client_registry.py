"""Node ids are random; clients keep their names, and whoever is missing is told."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.grid.grid import NodeInfo

from common.errors import AggregationError, ClientError, WireError
from common.types import by_client
from common.wire.client_card import ClientCard, DataKind
from common.wire.content import CONFIG
from common.wire.messages import client_id_of
from server_app.round.client_registry import ClientRegistry
from server_app.round.ready_clients import ReadyClients, clients_by_name, wait_for_clients

pytestmark = pytest.mark.usefixtures("flower_identity")

Answer = Callable[[Message], Message | None]


class Nodes:
    """A grid of named nodes, each with its answer to a query; None never answers."""

    def __init__(self, names: dict[int, str], answer: Answer = lambda m: None) -> None:
        self.names, self.answer = names, answer
        self.sent: dict[str, Message] = {}
        self.questions: list[Message] = []

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=name) for node, name in self.names.items()]

    def push_messages(self, messages: list[Message]) -> list[str]:
        for message in messages:
            self.questions.append(message)
            name = message.metadata.__dict__["_message_id"] = f"message-{len(self.questions)}"
            self.sent[name] = message
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = {name: self.answer(self.sent[name]) for name in message_ids if name in self.sent}
        for name, reply in replies.items():
            if reply is not None:
                del self.sent[name]
        return [reply for reply in replies.values() if reply is not None]


def card(client: str, **changes: Any) -> ClientCard:
    facts = {"shape": (1, 8, 8), "classes": 10, "train_examples": 5, "test_examples": 2}
    return ClientCard(partition=client, device="trains on the CPU", **{**facts, **changes})


def with_cards(cards: dict[int, ClientCard]) -> Nodes:
    return Nodes(
        dict.fromkeys(cards, ""),
        lambda m: Message(cards[m.metadata.dst_node_id].record(), reply_to=m),
    )


def test_clients_are_sorted_as_people_count() -> None:
    roster = ReadyClients.of({"10": 5, "2": 6, "site-b": 7, "1": 8})
    assert roster.clients == ["1", "2", "10", "site-b"]
    assert roster.nodes["10"] == 5


def test_registered_names_are_the_clients_names_and_ids_fill_in() -> None:
    assert clients_by_name(Nodes({81: "ward-b", 7: "", 93: "ward-a"})).nodes == {
        "7": 7,
        "ward-a": 93,
        "ward-b": 81,
    }


def test_nodes_that_share_a_name_are_both_kept() -> None:
    assert clients_by_name(Nodes({81: "ward", 93: "ward", 5: "icu"})).nodes == {
        "81": 81,
        "93": 93,
        "icu": 5,
    }


def test_enough_clients_are_returned_at_once_in_order() -> None:
    roster = wait_for_clients(Nodes({9: "", 3: "", 5: ""}), clients_by_name, 2, timeout=0)
    assert roster.clients == ["3", "5", "9"]


def test_waiting_ends_when_the_last_one_connects() -> None:
    grid, told = Nodes({1: "a"}), []

    def tell(text: str) -> None:
        told.append(text)
        grid.names[2] = "b"

    assert wait_for_clients(grid, clients_by_name, 2, 5, tell, ("a", "b")).nodes == {"a": 1, "b": 2}
    assert told == ["waiting for clients: 1 of 2 connected; missing: b"]


# A public report of this bug: https://github.com/londonaicentre/FLIP/pull/992
def test_waiting_has_a_deadline_and_says_who_came_and_who_did_not() -> None:
    begin = time.monotonic()
    expected = ("a", "b", "c", "d", "e")
    with pytest.raises(
        AggregationError,
        match=r"2 of 5 .* within 0\.1 s \(connected: a, b; missing: c, d, e\); start",
    ):
        wait_for_clients(Nodes({1: "b", 2: "a"}), clients_by_name, 5, 0.1, expected=expected)
    assert time.monotonic() - begin < 2


# ---------------------------------------------------------------- the registry


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at who is there at every call, not once a second."""
    monkeypatch.setattr("server_app.round.client_registry.LOOK_SECONDS", 0.0)


def registry(clients: int = 2, quorum: int = 2, timeout: float = 60.0) -> ClientRegistry:
    return ClientRegistry(clients, quorum, timeout, TOLD.append)


TOLD: list[str] = []


def test_clients_with_a_card_are_ready() -> None:
    grid, known = with_cards({71: card("1"), 12: card("0")}), registry()
    assert known(grid).nodes == {"0": 12, "1": 71}
    assert known.first.partition == "0"
    known(grid)
    assert len(grid.questions) == 2, "everybody is asked once"


def test_a_registered_name_is_the_clients_id_and_the_node_is_told_it() -> None:
    grid = with_cards({71: card(""), 12: card("0")})
    grid.names = {71: "ward-a", 12: "ward-b"}
    assert registry()(grid).nodes == {"ward-a": 71, "ward-b": 12}
    assert [client_id_of(m.content) for m in grid.questions] == ["ward-b", "ward-a"]


def test_a_client_without_a_card_gets_no_order_and_delays_no_other_client() -> None:
    cards = {12: card("0"), 71: card("1")}
    grid = Nodes({12: "", 71: ""})
    slow = {71}
    grid.answer = lambda m: (
        None
        if m.metadata.dst_node_id in slow
        else Message(cards[m.metadata.dst_node_id].record(), reply_to=m)
    )
    known = registry(quorum=1)
    assert known(grid).clients == ["0"]
    slow.clear()
    assert known(grid).clients == ["0", "1"]


def test_a_client_that_comes_later_joins_and_one_that_goes_is_not_asked() -> None:
    grid, known = with_cards({12: card("0"), 71: card("1")}), registry(quorum=1)
    late = grid.names.pop(71)
    assert known(grid).clients == ["0"]
    grid.names[71] = late
    assert known(grid).clients == ["0", "1"]
    assert TOLD[-1] == "client 1 joins: it trains on the CPU"
    del grid.names[12]
    assert known(grid).clients == ["1"]
    grid.names[12] = ""
    assert known(grid).nodes == {"0": 12, "1": 71}
    assert len(grid.questions) == 2, "it is known already"


def test_a_client_comes_back_under_another_node_id() -> None:
    cards = {12: card("0"), 13: card("0")}
    grid, known = with_cards(cards), registry(clients=1, quorum=1)
    del grid.names[13]
    assert known(grid).nodes == {"0": 12}
    grid.names = {13: ""}
    assert known(grid).nodes == {"0": 13}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (card("0"), r"two nodes \(12 and 71\) both say they are client \"0\"; the second is ref"),
        (card("1", classes=7), r"client 1 has .*of 7 classes, client 0 has .* of 10"),
        (card("1", shape=(3, 8, 8)), r"client 1 has images \(3, 8, 8\)"),
    ],
)
def test_clients_that_do_not_fit_together_are_named(second: ClientCard, reason: str) -> None:
    with pytest.raises(ClientError, match=reason):
        registry()(with_cards({12: card("0"), 71: second}))


def test_the_second_of_two_that_hold_one_partition_is_refused_by_name() -> None:
    grid, known = with_cards({12: card("0"), 71: card("0")}), registry(quorum=1)
    grid.names = {12: "ward-a", 71: "ward-b"}
    roster = known(grid)
    assert roster.clients == ["ward-a"]
    assert 'client "ward-b" holds partition 0, which client "ward-a"' in roster.refused["ward-b"]


def test_a_refused_client_spoils_nothing_once_the_quorum_is_there() -> None:
    cards = {12: card("0"), 71: card("1"), 99: card("2", classes=3)}
    grid, known = with_cards(cards), registry(clients=2, quorum=2)
    bad = grid.names.pop(99)
    assert known(grid).clients == ["0", "1"]
    grid.names[99] = bad
    roster = known(grid)
    assert roster.clients == ["0", "1"]
    assert "of 3 classes" in roster.refused["99"]
    known(grid)
    assert len(grid.questions) == 3, "it is not asked again at once"


def test_a_refused_client_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Error(2, "no GPU"), card("1")]

    def answer(message: Message) -> Message:
        if message.metadata.dst_node_id == 12:
            return Message(card("0").record(), reply_to=message)
        said = answers.pop(0)
        return Message(said if isinstance(said, Error) else said.record(), reply_to=message)

    grid, known = Nodes({12: "", 71: ""}, answer), registry(quorum=1)
    assert known(grid).refused == {"71": "its ClientApp raised an error: no GPU"}
    monkeypatch.setattr("server_app.round.client_registry.AGAIN_SECONDS", 0.0)
    roster = known(grid)
    assert roster.clients == ["0", "1"]
    assert roster.refused == {}


def test_clients_that_cannot_take_part_say_why() -> None:
    def answer(message: Message) -> Message:
        return Message(Error(2, "ClientError: no GPU"), reply_to=message)

    with pytest.raises(ClientError, match=r"2 of 2 clients cannot take part; 2 say: .*no GPU"):
        registry()(Nodes({1: "", 2: ""}, answer))


def test_while_others_may_come_a_refusal_is_not_the_end() -> None:
    cards = {12: card("0"), 71: card("1", classes=7)}
    known = registry(clients=3, quorum=2)
    assert known(with_cards(cards)).clients == ["0"]


def test_clients_that_say_nothing_have_a_deadline() -> None:
    grid, known = Nodes({1: "", 2: ""}), registry(timeout=0.05)
    assert known(grid).clients == []
    time.sleep(0.1)
    with pytest.raises(ClientError, match=r"2 say: did not say who it is within 0\.05 s"):
        known(grid)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({CONFIG: ConfigRecord({"partition": "0"})}),
        "short shape",
        "numbers",
    ],
)
def test_a_reply_that_is_no_card_is_refused(content: RecordDict | str) -> None:
    if isinstance(content, str):
        change = {"short shape": {"shape": [1]}, "numbers": {"shape": 3}}[content]
        record = ConfigRecord({**card("0").record()[CONFIG], **change})
        content = RecordDict({CONFIG: record})
    with pytest.raises(ClientError, match="expected a client's card"):
        registry(1, 1)(Nodes({1: ""}, lambda m: Message(content, reply_to=m)))


def test_a_client_that_goes_away_while_it_is_asked_is_asked_when_it_is_back() -> None:
    """That is no reason to end the wait at the start: it may come back in time."""
    answers = [Error(5, "gone"), card("0")]

    def answer(message: Message) -> Message:
        said = answers.pop(0)
        return Message(said if isinstance(said, Error) else said.record(), reply_to=message)

    grid, known = Nodes({12: ""}, answer), registry(1, 1)
    assert known(grid).clients == []
    assert known(grid).clients == ["0"]


def test_a_malformed_answer_is_its_own_clients_affair() -> None:
    class Torn(Nodes):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            if any(self.sent[m].metadata.dst_node_id == 71 for m in message_ids if m in self.sent):
                raise ValueError("not a message")
            return super().pull_messages(message_ids)

    grid = Torn({12: "", 71: ""}, lambda m: Message(card("0").record(), reply_to=m))
    roster = registry(quorum=1)(grid)
    assert roster.clients == ["0"]
    assert "malformed" in roster.refused["71"]


def test_a_node_that_left_is_refused_no_more() -> None:
    cards = {12: card("0"), 71: card("1", classes=7)}
    grid, known = with_cards(cards), registry(quorum=1)
    assert known(grid).refused.keys() == {"71"}
    del grid.names[71]
    assert known(grid).refused == {}


def test_admission_work_grows_linearly_with_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A federation ten times as large is met with at most some ten times the work."""
    looked = [0]

    def counted(client: str) -> tuple[int, str]:
        looked[0] += 1
        return by_client(client)

    class Cards(dict[str, ClientCard]):
        def __getitem__(self, client: str) -> ClientCard:
            looked[0] += 1
            return super().__getitem__(client)

    def work(clients: int) -> int:
        looked[0] = 0
        known = registry(clients, clients)
        known.cards = Cards()
        roster = known(with_cards({k: card(str(k)) for k in range(clients)}))
        assert len(roster.nodes) == clients
        return looked[0]

    monkeypatch.setattr("server_app.round.client_registry.by_client", counted)
    assert work(300) <= 11 * work(30)


def test_a_node_whose_first_query_was_lost_gets_another_one_after_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then it would wait for the timeout of a round, an hour by default."""
    monkeypatch.setattr("server_app.round.client_registry.LOST_SECONDS", 0.05)
    monkeypatch.setattr("server_app.round.client_registry.LOOK_SECONDS", 0.0)

    def second(message: Message) -> Message | None:
        return Message(card("0").record(), reply_to=message) if len(grid.questions) > 1 else None

    grid = Nodes({7: "ward-a"}, second)
    registry = ClientRegistry(1, 1, 3600.0, lambda _: None)
    begin = time.monotonic()
    while not registry(grid).nodes:
        assert time.monotonic() - begin < 5
    assert len(grid.questions) == 2
    assert not registry.has_open_queries


def test_queries_to_a_silent_node_become_rarer_and_stay_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server_app.round.client_registry.LOST_SECONDS", 0.02)
    monkeypatch.setattr("server_app.round.client_registry.LOOK_SECONDS", 0.0)
    grid, told = Nodes({7: "ward-a"}), list[str]()
    registry = ClientRegistry(2, 1, 0.5, told.append)
    begin = time.monotonic()
    while not told and time.monotonic() - begin < 5:
        registry(grid)
    assert told == ["client ward-a cannot take part: did not say who it is within 0.5 s"]
    assert 3 <= len(grid.questions) <= 6
    assert not registry.has_open_queries


# ---------------------------------------------------------------- one odd card


@pytest.mark.parametrize("odd", ["0", "2", "4"])
def test_a_client_with_other_data_is_refused_and_the_majority_goes_on(odd: str) -> None:
    """The card of the first client by name decided, and the honest clients could not take part."""
    cards = {10 + k: card(str(k)) for k in range(5)}
    cards[10 + int(odd)] = card(odd, shape=(1, 48, 48))
    known = registry(clients=5, quorum=4)
    ready = known(with_cards(cards))
    assert odd not in ready.clients
    assert len(ready.clients) == 4
    reason = ready.refused[str(10 + int(odd))]
    assert f"client {odd} has images (1, 48, 48) of 10 classes, the 4 clients" in reason
    assert known.first.shape == (1, 8, 8)


@pytest.mark.parametrize("odd", ["0", "1", "2"])
def test_the_config_decides_against_a_majority(odd: str) -> None:
    cards = {10 + k: card(str(k), classes=7) for k in range(3)}
    cards[10 + int(odd)] = card(odd)
    known = ClientRegistry(3, 1, 60.0, TOLD.append, DataKind((1, 8, 8), 10))
    ready = known(with_cards(cards))
    assert ready.clients == [odd]
    assert all("the run config demands images (1, 8, 8)" in why for why in ready.refused.values())


def test_the_kind_of_a_run_under_way_does_not_change_with_its_clients() -> None:
    cards = {10: card("0"), 11: card("1")}
    cards |= {20 + k: card(str(2 + k), classes=7) for k in range(3)}
    grid, known = with_cards(cards), registry(clients=2, quorum=2)
    late = {node: grid.names.pop(node) for node in (20, 21, 22)}
    assert known(grid).clients == ["0", "1"]
    grid.names |= late
    ready = known(grid)
    assert ready.clients == ["0", "1"]
    assert set(ready.refused) == {"20", "21", "22"}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"shape": (1, 10**9, 8)}, r"shape\[1\]"),
        ({"shape": (0, 8, 8)}, r"shape\[0\]"),
        ({"classes": 10**12}, "classes"),
        ({"train_examples": 2**60}, "train_examples"),
        ({"test_examples": -1}, "test_examples"),
    ],
)
def test_impossible_numbers_of_a_card_are_refused_by_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(WireError, match=f"expected {key} of a client's card from"):
        ClientCard.read(card("0", **change).record())


def test_a_new_card_of_a_client_is_reported() -> None:
    cards = {12: card("0"), 13: card("0", train_examples=6)}
    grid, known = with_cards(cards), registry(clients=1, quorum=1)
    del grid.names[13]
    known(grid)
    grid.names = {13: ""}
    assert known(grid).train_examples == {"0": 6}
    assert TOLD[-1].startswith("client 0 has a new card: ")
