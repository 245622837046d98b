"""ReadyClients: the clients that can take part now, and waiting for enough of them."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from flwr.serverapp import Grid

from common.errors import AggregationError
from common.types import ClientId, by_client
from common.wire.client_card import ClientCard

POLL_SECONDS = 0.1
SHOWN = 20  # names in a sentence


@dataclass(frozen=True)
class ReadyClients:
    """The clients that are ready.

    Attributes:
        nodes: the node of each client, sorted by client.
        refused: the reason why each other connected client cannot take part.
        train_examples: number of training samples on the card of each client that sent one.
        test_examples: number of test samples on it.
    """

    nodes: Mapping[ClientId, int]
    refused: Mapping[ClientId, str] = field(default_factory=dict)
    train_examples: Mapping[ClientId, int] = field(default_factory=dict)
    test_examples: Mapping[ClientId, int] = field(default_factory=dict)

    @property
    def clients(self) -> list[ClientId]:
        """The client ids, sorted."""
        return list(self.nodes)

    @classmethod
    def of(
        cls, nodes: Mapping[ClientId, int], refused: Mapping[ClientId, str] | None = None
    ) -> "ReadyClients":
        """Return the clients in sorted order."""
        ordered = sorted(nodes.items(), key=lambda item: by_client(item[0]))
        return cls(dict(ordered), dict(refused or {}))

    def with_cards(self, cards: Mapping[ClientId, ClientCard]) -> "ReadyClients":
        """Return the same clients with the numbers of samples on their cards."""
        train = {client: card.train_examples for client, card in cards.items()}
        test = {client: card.test_examples for client, card in cards.items()}
        return replace(self, train_examples=train, test_examples=test)


def clients_by_name(grid: Grid) -> ReadyClients:
    """Return all connected nodes by registered name, or by node id if the name is not unique."""
    nodes = list(grid.get_nodes())
    count = Counter(node.name for node in nodes)
    named = {n.name if n.name and count[n.name] == 1 else str(n.node_id): n.node_id for n in nodes}
    return ReadyClients.of(named)


def wait_for_clients(
    grid: Grid,
    registry: Callable[[Grid], ReadyClients],
    wanted: int,
    timeout: float,
    report: Callable[[str], None] = lambda _: None,
    expected: tuple[ClientId, ...] = (),
) -> ReadyClients:
    """Return the clients that are ready once they are at least `wanted`.

    Args:
        grid: Flower's grid.
        registry: returns the clients that are ready now.
        wanted: fewest clients.
        timeout: seconds.
        report: gets a sentence whenever the number changes.
        expected: names of the clients that should connect, for the sentence.

    Raises:
        AggregationError: the timeout is over. The message names the clients that are connected
            and those that are missing.
    """
    deadline, reported = time.monotonic() + timeout, -1
    while len((now := registry(grid)).nodes) < wanted:
        if len(now.nodes) != reported:
            reported = len(now.nodes)
            report(
                f"waiting for clients: {reported} of {wanted} connected{_missing(now, expected)}"
            )
        if time.monotonic() >= deadline:
            connected = ", ".join(now.clients[:SHOWN]) or "none"
            raise AggregationError(
                f"{len(now.nodes)} of {wanted} clients connected within {timeout:g} s (connected: "
                f"{connected}{_missing(now, expected)}); start the others, or ask for fewer "
                "(server.quorum)"
            )
        time.sleep(min(POLL_SECONDS, timeout))
    return now


def _missing(ready: ReadyClients, expected: tuple[ClientId, ...]) -> str:
    missing = [name for name in expected if name not in ready.nodes]
    if not missing:
        return ""
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"; missing: {', '.join(missing[:SHOWN])}{more}"
