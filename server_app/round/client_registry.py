"""ClientRegistry: which node is which client, and who is ready.

Flower's node ids are random in every simulated run; a client's id must not be. On real nodes the
id is the name under which the node's key is registered, in simulation the partition it holds.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from httpx import TransportError

from common.errors import AggregationError, ClientError, FedError
from common.io.text import single_line
from common.types import ClientId, by_client
from common.wire.messages import ClientCard, query_content
from server_app.round.error_reasons import reason_of
from server_app.round.polling import Looks, push, was_lost

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0  # who is there is asked for at most so often
AGAIN_SECONDS = 30.0  # until a client that could not take part is asked again
SHOWN = 20  # names in a sentence


@dataclass(frozen=True)
class ReadyClients:
    """The clients that are there and ready, sorted, with the node that each sits on.

    `refused` says why others that are there cannot take part.
    """

    nodes: Mapping[ClientId, int]
    refused: Mapping[ClientId, str] = field(default_factory=dict)

    @property
    def clients(self) -> list[ClientId]:
        """All client ids, sorted."""
        return list(self.nodes)

    @classmethod
    def of(
        cls, nodes: Mapping[ClientId, int], refused: Mapping[ClientId, str] | None = None
    ) -> "ReadyClients":
        """Sort the clients."""
        ordered = sorted(nodes.items(), key=lambda item: by_client(item[0]))
        return cls(dict(ordered), dict(refused or {}))


def clients_by_name(grid: Grid) -> ReadyClients:
    """Name clients without asking them: the registered name where it is one node's, else its id."""
    nodes = list(grid.get_nodes())
    count = Counter(node.name for node in nodes)
    named = {n.name if n.name and count[n.name] == 1 else str(n.node_id): n.node_id for n in nodes}
    return ReadyClients.of(named)


def wait_for_clients(
    grid: Grid,
    roster: Callable[[Grid], ReadyClients],
    wanted: int,
    timeout: float,
    tell: Callable[[str], None] = lambda _: None,
    expected: tuple[ClientId, ...] = (),
) -> ReadyClients:
    """Return the roster once it has `wanted` clients.

    Args:
        grid: Flower's grid.
        roster: who is there now.
        wanted: how many are needed.
        timeout: seconds.
        tell: gets a sentence whenever the number changes.
        expected: names of clients that should come, for the sentence.

    Raises:
        AggregationError: fewer within `timeout` seconds; the message says who is there and who
            is missing.
    """
    deadline, told = time.monotonic() + timeout, -1
    while len((now := roster(grid)).nodes) < wanted:
        if len(now.nodes) != told:
            told = len(now.nodes)
            tell(f"waiting for clients: {told} of {wanted} connected{_missing(now, expected)}")
        if time.monotonic() >= deadline:
            there = ", ".join(now.clients[:SHOWN]) or "none"
            raise AggregationError(
                f"{len(now.nodes)} of {wanted} clients connected within {timeout:g} s (connected: "
                f"{there}{_missing(now, expected)}); start the others, or ask for fewer "
                "(server.quorum)"
            )
        time.sleep(min(POLL_SECONDS, timeout))
    return now


def _missing(roster: ReadyClients, expected: tuple[ClientId, ...]) -> str:
    missing = [name for name in expected if name not in roster.nodes]
    if not missing:
        return ""
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"; missing: {', '.join(missing[:SHOWN])}{more}"


@dataclass(frozen=True)
class _Refusal:
    name: ClientId
    reason: str
    since: float


class ClientRegistry:
    """The clients of a federation: asks each node once who it is before it gets work.

    Calling it returns who is ready now and never waits: newcomers are sent a "query" message, and
    their answer counts when it is there. So a client may join while a round goes on.

    Args:
        clients: how many the federation has, N.
        quorum: how many of them make a round.
        timeout: seconds that a node has for its answer.
        tell: gets a sentence on whoever cannot take part or comes newly.
    """

    def __init__(
        self, clients: int, quorum: int, timeout: float, tell: Callable[[str], None]
    ) -> None:
        self.clients, self.quorum, self.timeout, self.tell = clients, quorum, timeout, tell
        self.cards: dict[ClientId, ClientCard] = {}
        self._first: ClientId = ""  # of those that have a card, by id
        self._nodes: dict[ClientId, int] = {}
        self._holders: dict[str, set[ClientId]] = {}  # by partition, those that ever held it
        self._asked: dict[str, tuple[int, float]] = {}  # message -> node, since when
        self._refusals: dict[int, _Refusal] = {}  # by node
        self._looks = Looks()
        self._names: dict[int, str] = {}  # of the nodes that are there
        self._seen = -LOOK_SECONDS
        self._ready = ReadyClients({})  # as of the last look
        self._met = False

    @property
    def first(self) -> ClientCard:
        """The card of the first client by id; what all others must agree with."""
        return self.cards[self._first]

    @property
    def are_enrolled(self) -> bool:
        """Whether the nodes have names, which only those of a SuperLink that knows keys have."""
        return any(self._names.values())

    def __call__(self, grid: Grid) -> ReadyClients:
        """Return who is there and ready.

        Raises:
            ClientError: at the start, when too few can still become ready.
        """
        now = time.monotonic()
        if self._asked or now - self._seen >= LOOK_SECONDS:
            self._seen = now
            with suppress(TransportError):  # a SuperLink that hangs: what was known counts on
                self._names = {node.node_id: node.name for node in grid.get_nodes()}
            self._refusals = {n: why for n, why in self._refusals.items() if n in self._names}
            self._greet(grid, now)
            self._listen(grid, now)
            there = {c: node for c, node in self._nodes.items() if node in self._names}
            self._ready = ReadyClients.of(there, self.refused)
        self._met = self._met or len(self._ready.nodes) >= self.quorum
        if not self._met:
            self._refuse_the_hopeless(len(self._ready.nodes))
        return self._ready

    def _greet(self, grid: Grid, now: float) -> None:
        """Ask the nodes that are new, and after a while those that could not take part."""
        known = {*self._nodes.values(), *(node for node, _ in self._asked.values())}
        waits = {n for n, why in self._refusals.items() if now - why.since < AGAIN_SECONDS}
        new = sorted(self._names.keys() - known - waits)
        messages = [
            Message(
                query_content(self._names[node], self.timeout),
                node,
                MessageType.QUERY,
                ttl=self.timeout,
            )
            for node in new
        ]
        taken = push(grid, messages)
        for node, message in zip(new, messages, strict=True):
            if message.metadata.message_id in taken:
                self._asked[message.metadata.message_id] = node, now

    def _listen(self, grid: Grid, now: float) -> None:
        """Take the answers that are there, in the order of the clients' ids."""
        came: list[tuple[int, ClientCard]] = []
        nodes = {name: node for name, (node, _) in self._asked.items()}
        for name, reply in self._looks.take(grid, nodes, POLL_SECONDS):
            node, _ = self._asked.pop(name)
            if isinstance(reply, Message) and was_lost(reply):
                continue  # it went away; it is asked when it is back
            try:
                if isinstance(reply, str) or reply.has_error():
                    raise ClientError(reply if isinstance(reply, str) else reason_of(reply.error))
                came.append((node, ClientCard.read(reply.content)))
            except FedError as error:
                self._refuse(node, single_line(str(error)), now)
        for node, card in sorted(came, key=lambda pair: by_client(self._id(*pair))):
            self._admit(node, card, now)
        for message, (node, since) in list(self._asked.items()):
            if now - since > self.timeout:
                del self._asked[message]
                self._refuse(node, f"did not say who it is within {self.timeout:g} s", now)

    def _id(self, node: int, card: ClientCard) -> ClientId:
        return self._names.get(node) or card.partition or str(node)

    def _admit(self, node: int, card: ClientCard, now: float) -> None:
        client = self._id(node, card)
        if objection := self._objection(node, client, card):
            self._refuse(node, objection, now)
            return
        self._refusals.pop(node, None)
        if self._met and client not in self.cards:
            self.tell(f"client {client} joins: it {single_line(card.device)}")
        self._first = min(self._first or client, client, key=by_client)
        self.cards[client], self._nodes[client] = card, node
        self._holders.setdefault(card.partition, set()).add(client)

    def _objection(self, node: int, client: ClientId, card: ClientCard) -> str:
        """Return why a client does not fit to those that are there; "" if it does."""
        other = self._nodes.get(client)
        if other is not None and other in self._names:
            return (
                f'two nodes ({other} and {node}) both say they are client "{client}"; the second '
                "is refused: give each its own name and key, or its own partition-id"
            )
        if twin := self._holder_of(card.partition):
            return (
                f'client "{client}" holds partition {card.partition}, which client "{twin}" has '
                "already; give each its own partition-id"
            )
        if self.cards and (card.shape, card.classes) != (self.first.shape, self.first.classes):
            return (
                f"client {client} has images {card.shape} of {card.classes} classes, client "
                f"{self._first} has {self.first.shape} of {self.first.classes}; all clients must "
                "hold the same kind of data"
            )
        return ""

    @property
    def refused(self) -> dict[ClientId, str]:
        """Why clients that are there cannot take part, by name, or by node where there is none."""
        return {one.name: one.reason for one in self._refusals.values()}

    @property
    def is_asking(self) -> bool:
        """Whether a node that is there has not answered yet."""
        return bool(self._asked)

    def _holder_of(self, partition: str) -> ClientId | None:
        """Return the client that is there and holds this part of a dealt data set."""
        known = self._holders.get(partition, set()) if partition else set()
        there = [client for client in known if self._nodes[client] in self._names]
        return next((c for c in there if self.cards[c].partition == partition), None)

    def _refuse(self, node: int, reason: str, now: float) -> None:
        name = self._names.get(node) or str(node)
        before = self._refusals.get(node)
        if before is None or before.reason != reason:
            self.tell(f"client {name} cannot take part: {reason}")
        self._refusals[node] = _Refusal(name, reason, now)

    def _refuse_the_hopeless(self, ready: int) -> None:
        """End the wait at the start when it can come to nothing."""
        to_come = max(0, self.clients - len(self._names))
        if self._refusals and not self._asked and ready + to_come < self.quorum:
            said = "; ".join(
                f"{count} say: {why}"
                for why, count in Counter(r.reason for r in self._refusals.values()).most_common(3)
            )
            raise ClientError(
                f"{len(self._refusals)} of {len(self._names)} clients cannot take part; {said}"
            )
