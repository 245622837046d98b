"""ClientRegistry: the node of each client, and the clients that are ready.

Flower's node ids are random in every simulated run, and client ids must not be. A real node is
registered with a name and a key, and this name is the client id. In simulation the client id is the
number of the client's partition.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from httpx import TransportError

from common.errors import ClientError, FedError
from common.io.text import single_line
from common.types import ClientId, by_client
from common.wire.client_card import ClientCard, DataKind
from common.wire.messages import query_content
from server_app.round.bounded_pull import ReplyLimit
from server_app.round.data_vote import DataVote
from server_app.round.error_reasons import reason_of
from server_app.round.polling import ReplyPoller, push_messages, was_lost
from server_app.round.ready_clients import POLL_SECONDS, ReadyClients

LOOK_SECONDS = 1.0  # between two requests for the connected nodes
AGAIN_SECONDS = 30.0  # until a refused client gets a new query
LOST_SECONDS = 20.0  # until the first query counts as lost and the node gets another one


Report = Callable[[str], None]
TWO_NODES = (
    'two nodes ({other} and {node}) both say they are client "{client}"; the second is refused: '
    "give each its own name and key, or its own partition-id"
)
TWO_HOLDERS = (
    'client "{client}" holds partition {partition}, which client "{twin}" has already; give each '
    "its own partition-id"
)


@dataclass(frozen=True)
class _Refusal:
    name: ClientId
    reason: str
    since: float


class ClientRegistry:
    """The clients of a federation: sends each node a query for its client card before any order.

    A call returns the clients that are ready now and never waits. A new node gets a query, and its
    client is ready once the card arrives. So a client may join during a round.

    Args:
        clients: number of clients of the federation, N.
        quorum: number of clients that must be ready for a round.
        timeout: seconds in which a node has to reply to the query.
        report: gets a sentence about each client that joins or cannot take part.
        kind: the kind of data that the run config demands. None: the kind that most of the clients
            have when the quorum is reached.
    """

    def __init__(
        self,
        clients: int,
        quorum: int,
        timeout: float,
        report: Report,
        kind: DataKind | None = None,
    ) -> None:
        self.clients, self.quorum, self.timeout, self.report = clients, quorum, timeout, report
        self.cards: dict[ClientId, ClientCard] = {}
        self._vote = DataVote(kind)
        self._nodes: dict[ClientId, int] = {}
        self._holders: dict[str, set[ClientId]] = {}  # by partition, clients that ever held it
        self._queries: dict[str, tuple[int, float]] = {}  # message -> node, time
        self._refusals: dict[int, _Refusal] = {}  # by node
        self._poller = ReplyPoller()
        self._names: dict[int, str] = {}  # of the connected nodes
        self._seen = -LOOK_SECONDS
        self._ready = ReadyClients({})  # of the last request
        self._met = False

    @property
    def first(self) -> ClientCard:
        """The card of the first client by id that has the run's kind of data."""
        kinds = self._kinds
        return next(self.cards[c] for c, kind in kinds.items() if kind == self._vote.winner(kinds))

    @property
    def are_enrolled(self) -> bool:
        """Whether the nodes have names, as nodes with registered keys do."""
        return any(self._names.values())

    def __call__(self, grid: Grid) -> ReadyClients:
        """Return the clients that are ready.

        Raises:
            ClientError: too few clients can become ready, before the first quorum.
        """
        now = time.monotonic()
        if self._queries or now - self._seen >= LOOK_SECONDS:
            self._seen = now
            with suppress(TransportError):  # the SuperLink hangs: keep the last nodes
                self._names = {node.node_id: node.name for node in grid.get_nodes()}
            self._refusals = {n: why for n, why in self._refusals.items() if n in self._names}
            self._send_queries(grid, now)
            self._take_cards(grid, now)
            self._refuse_losers(now)
            kinds = self._kinds
            winner = self._vote.winner(kinds)
            nodes = {c: self._nodes[c] for c in kinds if kinds[c] == winner}
            cards = {client: self.cards[client] for client in nodes}
            self._ready = ReadyClients.of(nodes, self.refused).with_cards(cards)
        self._met = self._met or len(self._ready.nodes) >= self.quorum
        if not self._met:
            to_come = max(0, self.clients - len(self._names))
            if not self._queries and len(self._ready.nodes) + to_come < self.quorum:
                _fail_without_quorum(self._ready.refused, len(self._names))
            return self._ready
        self._vote.close(self._kinds)
        return self._ready

    def _send_queries(self, grid: Grid, now: float) -> None:
        """Send a query to each new node, and again to refused nodes after a while.

        A query may be lost, for example when the node's app process starts too slowly for Flower.
        So a node without a reply gets another one after 20 s, then after 40 s, 80 s, and so on.
        """
        open_queries = Counter(node for node, _ in self._queries.values())
        last = dict(self._queries.values())  # the newest query of a node is the last one
        asked = {n for n, k in open_queries.items() if now - last[n] < LOST_SECONDS * 2 ** (k - 1)}
        known = {*self._nodes.values(), *asked}
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
        taken = push_messages(grid, messages)
        for node, message in zip(new, messages, strict=True):
            if message.metadata.message_id in taken:
                self._queries[message.metadata.message_id] = node, now

    def _take_cards(self, grid: Grid, now: float) -> None:
        """Admit or refuse the clients whose cards arrived, in the order of their ids."""
        came: list[tuple[int, ClientCard]] = []
        nodes = {name: node for name, (node, _) in self._queries.items()}
        for name, reply in self._poller.take(grid, nodes, POLL_SECONDS, ReplyLimit()):
            if name not in self._queries:
                continue  # the node replied to two queries
            node, _ = self._queries.pop(name)
            if isinstance(reply, Message) and was_lost(reply):
                continue  # the node is gone. It gets a query when it is back
            try:
                if isinstance(reply, str) or reply.has_error():
                    raise ClientError(reply if isinstance(reply, str) else reason_of(reply.error))
                came.append((node, ClientCard.read(reply.content)))
            except FedError as error:
                self._refuse(node, str(error), now)
            self._forget_queries(node)
        for node, card in sorted(came, key=lambda pair: by_client(self._id(*pair))):
            self._admit(node, card, now)
        for node in {n for n, since in self._queries.values() if now - since > self.timeout}:
            self._forget_queries(node)
            self._refuse(node, f"did not say who it is within {self.timeout:g} s", now)

    def _forget_queries(self, node: int) -> None:
        self._queries = {m: asked for m, asked in self._queries.items() if asked[0] != node}

    def _name(self, node: int) -> str:
        return self._names.get(node) or str(node)

    def _id(self, node: int, card: ClientCard) -> ClientId:
        return self._names.get(node) or card.partition or str(node)

    def _admit(self, node: int, card: ClientCard, now: float) -> None:
        client = self._id(node, card)
        if objection := self._objection(node, client, card):
            self._refuse(node, objection, now)
            return
        self._refusals.pop(node, None)
        if self._met and client not in self.cards:
            self.report(f"client {client} joins: it {card.device}")
        if client in self.cards and self.cards[client] != card:
            self.report(f"client {client} has a new card: {card}, before {self.cards[client]}")
        self.cards[client], self._nodes[client] = card, node
        self._holders.setdefault(card.partition, set()).add(client)

    def _objection(self, node: int, client: ClientId, card: ClientCard) -> str:
        """Return why a client does not fit the connected ones, "" if it does."""
        other = self._nodes.get(client)
        if other is not None and other in self._names:
            return TWO_NODES.format(other=other, node=node, client=client)
        if twin := self._holder_of(card.partition):
            return TWO_HOLDERS.format(client=client, partition=card.partition, twin=twin)
        return ""

    @property
    def _kinds(self) -> dict[ClientId, DataKind]:
        """The kind of data of each connected client, sorted by client."""
        there = [client for client, node in self._nodes.items() if node in self._names]
        return {client: self.cards[client].kind for client in sorted(there, key=by_client)}

    def _refuse_losers(self, now: float) -> None:
        """Refuse the clients whose kind of data lost the vote."""
        reasons, is_settled = self._vote.losers(self._kinds)
        if is_settled:
            for client, reason in reasons.items():
                self._refuse(self._nodes.pop(client), reason, now)
                del self.cards[client]

    @property
    def refused(self) -> dict[ClientId, str]:
        """The reason why a connected client cannot take part, by name or else by node id."""
        losers, _ = self._vote.losers(self._kinds)
        named = {self._name(self._nodes[client]): reason for client, reason in losers.items()}
        return named | {refusal.name: refusal.reason for refusal in self._refusals.values()}

    @property
    def has_open_queries(self) -> bool:
        """Whether a query has no reply yet."""
        return bool(self._queries)

    def _holder_of(self, partition: str) -> ClientId | None:
        """Return the connected client that holds this partition, None if there is none."""
        for client in self._holders.get(partition, set()) if partition else ():
            if self._nodes.get(client) in self._names and self.cards[client].partition == partition:
                return client
        return None

    def _refuse(self, node: int, reason: str, now: float) -> None:
        name, reason = self._name(node), single_line(reason)
        before = self._refusals.get(node)
        if before is None or before.reason != reason:
            self.report(f"client {name} cannot take part: {reason}")
        self._refusals[node] = _Refusal(name, reason, now)


def _fail_without_quorum(refused: Mapping[ClientId, str], connected: int) -> None:
    """Raise a ClientError if the quorum is missed because clients were refused."""
    if refused:
        counts = Counter(refused.values())
        reasons = "; ".join(f"{count} say: {reason}" for reason, count in counts.most_common(3))
        raise ClientError(f"{len(refused)} of {connected} clients cannot take part; {reasons}")
