"""Roster: which node is which client.

Flower's node ids are random in every simulated run; a client's id must not be. In simulation the
id is the partition that the client holds, on real nodes the name under which it was registered.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from common.errors import AggregationError, ClientError
from common.types import ClientId, by_client
from common.wire import CONFIG, Card
from server_app.reasons import reason_of

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Roster:
    """The clients of a run, sorted, with the node that each sits on."""

    nodes: Mapping[ClientId, int]

    @property
    def clients(self) -> list[ClientId]:
        """All client ids, sorted."""
        return list(self.nodes)

    @classmethod
    def of(cls, nodes: Mapping[ClientId, int]) -> "Roster":
        """Sort the clients."""
        return cls(dict(sorted(nodes.items(), key=lambda item: by_client(item[0]))))


def by_name(grid: Grid) -> Roster:
    """Name clients without asking them: the registered name where it is one node's, else its id."""
    nodes = list(grid.get_nodes())
    count = Counter(node.name for node in nodes)
    named = {n.name if n.name and count[n.name] == 1 else str(n.node_id): n.node_id for n in nodes}
    return Roster.of(named)


def wait_for_nodes(
    grid: Grid, wanted: int, timeout: float, tell: Callable[[str], None] = lambda _: None
) -> list[int]:
    """Return the connected nodes once there are `wanted` of them.

    Raises:
        AggregationError: fewer within `timeout` seconds; the message says how many and who.
    """
    deadline, told = time.monotonic() + timeout, -1
    while len(nodes := sorted(grid.get_node_ids())) < wanted:
        if len(nodes) != told:
            told = len(nodes)
            tell(f"waiting for clients: {told} of {wanted} connected")
        if time.monotonic() >= deadline:
            names = ", ".join(by_name(grid).clients) or "none"
            raise AggregationError(
                f"{len(nodes)} of {wanted} clients connected within {timeout:g} s (connected: "
                f"{names}); start the others, or ask for fewer"
            )
        time.sleep(min(POLL_SECONDS, timeout))
    return nodes


def ask_everybody(grid: Grid, nodes: list[int], timeout: float) -> tuple[Roster, Card]:
    """Ask every node who it is and whether it can do its part (one "query" message each).

    Returns:
        The roster, and what the first client says of itself (device, data, model).

    Raises:
        ClientError: a client cannot take part (no GPU where one was asked for, no data), clients
            hold different numbers of partitions, or two nodes claim to be the same client.
    """
    content = RecordDict({CONFIG: ConfigRecord()})
    messages = [Message(content, node, MessageType.QUERY) for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=timeout))
    problems = Counter(reason_of(reply.error) for reply in replies if reply.has_error())
    if problems:
        said = "; ".join(f"{count} say: {why}" for why, count in problems.most_common(3))
        raise ClientError(f"{problems.total()} of {len(nodes)} clients cannot take part; {said}")
    if len(replies) < len(nodes):
        raise ClientError(f"{len(nodes) - len(replies)} of {len(nodes)} clients did not say who "
                          f"they are within {timeout:g} s")  # fmt: skip
    cards = [(reply.metadata.src_node_id, Card.read(reply.content)) for reply in replies]
    first = min((card for _, card in cards), key=lambda card: by_client(card.client))
    nodes_of: dict[ClientId, int] = {}
    for node, card in cards:
        if card.client in nodes_of:
            raise ClientError(
                f"two nodes ({nodes_of[card.client]} and {node}) both say they are client "
                f'"{card.client}"; give each its own partition-id or name'
            )
        nodes_of[card.client] = node
        if (card.shape, card.classes) != (first.shape, first.classes):
            raise ClientError(
                f"client {card.client} has images {card.shape} of {card.classes} classes, client "
                f"{first.client} has {first.shape} of {first.classes}; all clients must hold the "
                "same kind of data"
            )
    return Roster.of(nodes_of), first
