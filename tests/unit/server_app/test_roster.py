"""Node ids are random; clients keep their names, and whoever is missing is told."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.grid.grid import NodeInfo

from common.errors import AggregationError, ClientError, WireError
from common.wire import CONFIG, Card
from server_app.roster import Roster, ask_everybody, by_name, wait_for_nodes

pytestmark = pytest.mark.usefixtures("flower_identity")

Answer = Callable[[Message], Message | None]


class Nodes:
    """A grid of named nodes, each with its answer to a query."""

    def __init__(self, names: dict[int, str], answer: Answer = lambda m: None) -> None:
        self.names, self.answer = names, answer

    def get_node_ids(self) -> Iterable[int]:
        return set(self.names)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=name) for node, name in self.names.items()]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [reply for m in messages if (reply := self.answer(m)) is not None]


def card(client: str, **changes: Any) -> Card:
    facts = {"shape": (1, 8, 8), "classes": 10, "train_examples": 5, "test_examples": 2}
    return Card(client=client, device="trains on the CPU", **{**facts, **changes})


def with_cards(cards: dict[int, Card]) -> Nodes:
    return Nodes(
        dict.fromkeys(cards, ""),
        lambda m: Message(cards[m.metadata.dst_node_id].record(), reply_to=m),
    )


def test_clients_are_sorted_as_people_count() -> None:
    roster = Roster.of({"10": 5, "2": 6, "site-b": 7, "1": 8})
    assert roster.clients == ["1", "2", "10", "site-b"]
    assert roster.nodes["10"] == 5


def test_registered_names_are_the_clients_names_and_ids_fill_in() -> None:
    assert by_name(Nodes({81: "ward-b", 7: "", 93: "ward-a"})).nodes == {
        "7": 7,
        "ward-a": 93,
        "ward-b": 81,
    }


def test_nodes_that_share_a_name_are_both_kept() -> None:
    assert by_name(Nodes({81: "ward", 93: "ward", 5: "icu"})).nodes == {
        "81": 81,
        "93": 93,
        "icu": 5,
    }


def test_enough_nodes_are_returned_at_once_in_order() -> None:
    assert wait_for_nodes(Nodes({9: "", 3: "", 5: ""}), 2, timeout=0) == [3, 5, 9]


def test_waiting_ends_when_the_last_one_connects() -> None:
    grid, told = Nodes({1: "a"}), []

    def tell(text: str) -> None:
        told.append(text)
        grid.names[2] = "b"

    assert wait_for_nodes(grid, 2, timeout=5, tell=tell) == [1, 2]
    assert told == ["waiting for clients: 1 of 2 connected"]


def test_waiting_has_a_deadline_and_says_who_came() -> None:
    begin = time.monotonic()
    with pytest.raises(AggregationError, match=r"2 of 5 .* within 0\.1 s \(connected: a, b\)"):
        wait_for_nodes(Nodes({1: "b", 2: "a"}), 5, timeout=0.1)
    assert time.monotonic() - begin < 2


def test_the_cards_make_the_roster() -> None:
    roster, first = ask_everybody(with_cards({71: card("1"), 12: card("0")}), [12, 71], 1)
    assert roster.nodes == {"0": 12, "1": 71}
    assert first.client == "0"


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (card("0"), r"two nodes \(12 and 71\) both say they are client"),
        (card("1", classes=7), r"client 1 has .*of 7 classes, client 0 has .* of 10"),
        (card("1", shape=(3, 8, 8)), r"client 1 has images \(3, 8, 8\)"),
    ],
)
def test_clients_that_do_not_fit_together_are_named(second: Card, reason: str) -> None:
    with pytest.raises(ClientError, match=reason):
        ask_everybody(with_cards({12: card("0"), 71: second}), [12, 71], 1)


def test_clients_that_cannot_take_part_say_why() -> None:
    def answer(message: Message) -> Message:
        return Message(Error(2, "ClientError: no GPU"), reply_to=message)

    with pytest.raises(ClientError, match=r"2 of 2 clients cannot take part; 2 say: .*no GPU"):
        ask_everybody(Nodes({1: "", 2: ""}, answer), [1, 2], 1)


def test_clients_that_say_nothing_are_counted() -> None:
    with pytest.raises(ClientError, match="2 of 2 clients did not say who they are within 3 s"):
        ask_everybody(Nodes({1: "", 2: ""}), [1, 2], 3)


@pytest.mark.parametrize(
    "content",
    [RecordDict(), RecordDict({CONFIG: ConfigRecord({"client": "0"})}), "short shape", "numbers"],
)
def test_what_is_no_card_is_refused(content: RecordDict | str) -> None:
    if isinstance(content, str):
        change = {"short shape": {"shape": [1]}, "numbers": {"shape": 3}}[content]
        record = ConfigRecord({**card("0").record()[CONFIG], **change})
        content = RecordDict({CONFIG: record})
    with pytest.raises(WireError, match="expected a client's card"):
        ask_everybody(Nodes({1: ""}, lambda m: Message(content, reply_to=m)), [1], 1)
