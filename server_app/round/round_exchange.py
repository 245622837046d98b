"""RoundExchange: samples the clients of a round, sends their messages and waits for the replies."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from common.config import cohort_size
from common.runs.live_state import LiveState
from common.types import ClientId, by_client
from common.wire.content import payload_bytes
from common.wire.incoming import bound_texts
from server_app.round.bounded_pull import ReplyLimit
from server_app.round.messaging import LATE, ExchangeLimits, Messenger, Replies
from server_app.round.ready_clients import ReadyClients, wait_for_clients
from server_app.round.sampling import sample_clients
from server_app.state.options import Options

logger = getLogger("flwr")


@dataclass
class SentMessages:
    """The messages of the current exchange, and what is known of their replies.

    Attributes:
        clients: the receivers by node. A client may move to another node during the exchange.
        bytes_down: bytes of the message, by client.
        lr: local learning rate of an order to train.
        enough: number of replies that end the exchange, or None to wait for all.
        limit: the size that a reply may have.
        most_examples: number of samples on each client's card, of the kind that the message needs.
        seconds: seconds from the message to the reply, by client.
        missing: the reason why a reply is missing, by client.
        again: clients that got the message again.
    """

    clients: dict[int, ClientId] = field(default_factory=dict)
    bytes_down: Mapping[ClientId, int] = field(default_factory=dict)
    lr: float = 1.0
    enough: int | None = None
    limit: ReplyLimit = field(default_factory=ReplyLimit)
    most_examples: Mapping[ClientId, int] = field(default_factory=dict)
    seconds: dict[ClientId, float] = field(default_factory=dict)
    missing: dict[ClientId, str] = field(default_factory=dict)
    again: list[ClientId] = field(default_factory=list)

    @property
    def cohort(self) -> list[ClientId]:
        """The receivers, sorted."""
        return sorted(set(self.clients.values()), key=by_client)

    def reasons(self, clients: Iterable[ClientId]) -> dict[ClientId, str]:
        """Return the reason why each of these clients has no reply."""
        return {client: self.missing.get(client, LATE) for client in clients}


@dataclass(frozen=True)
class RepliesByClient(Collection[Message]):
    """Replies as Flower's hooks take them, which still know their clients.

    Attributes:
        by_client: the reply of each client that replied, sorted by client.
    """

    by_client: Mapping[ClientId, Message]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.by_client.values())

    def __len__(self) -> int:
        return len(self.by_client)

    def __contains__(self, reply: object) -> bool:
        return reply in self.by_client.values()


class RoundExchange:
    """The exchange of messages with the clients of one round. A new one replaces the last.

    Args:
        options: how rounds run.
        registry: returns the clients that are ready. Called in every round and while waiting.
        expected: names of the clients that should connect.
        show_live: gets the live state whenever it may have changed.
    """

    def __init__(
        self,
        options: Options,
        registry: Callable[[Grid], ReadyClients],
        expected: tuple[ClientId, ...],
        show_live: Callable[[LiveState], None],
    ) -> None:
        self.options, self.registry, self.expected = options, registry, expected
        self.show_live = show_live
        self.sent = SentMessages()
        self.federation_size = 0  # N, number of clients
        self.timeout = 0.0  # of a round in seconds; 0 outside of our own loop
        self.rounds = 0  # last round of the run; 0 outside of our own loop
        self._ready = ReadyClients({})
        self._messenger = Messenger()

    def sample(
        self, grid: Grid, fraction: float, fewest: int, server_round: int, spare: int = 0
    ) -> tuple[ReadyClients, list[ClientId]]:
        """Wait for clients. Return those that are ready, and the sampled ones sorted.

        Args:
            grid: Flower's grid.
            fraction: share of the clients to sample; 0 samples none.
            fewest: fewest clients to sample.
            server_round: number of the round.
            spare: clients to sample beyond that.

        Raises:
            AggregationError: too few clients connect within the timeout.
        """
        if fraction == 0:
            return ReadyClients({}), []
        options, since = self.options, time.time()
        timeout = options.start_timeout

        def look(grid: Grid) -> ReadyClients:
            ready = self._look(grid)
            self.show_live(
                LiveState.waiting(
                    ready.clients, ready.refused, server_round, self.rounds, since, timeout
                )
            )
            return ready

        wanted = max(options.min_available_nodes, fewest)
        ready = wait_for_clients(grid, look, wanted, timeout, logger.info, self.expected)
        self.federation_size = max(options.clients, len(ready.nodes))
        size = max(cohort_size(fraction, self.federation_size), fewest) + spare
        return ready, sample_clients(ready.clients, size, seed=options.seed, round=server_round)

    def prepare(
        self,
        ready: ReadyClients,
        contents: Mapping[ClientId, RecordDict],
        kind: str,
        *,
        lr: float = 1.0,
        enough: int | None = None,
        vectors: Mapping[str, int] | None = None,
    ) -> list[Message]:
        """Return the messages of a new exchange.

        Args:
            ready: the node of each client.
            contents: content of the message to each sampled client.
            kind: Flower's message type.
            lr: local learning rate of an order to train.
            enough: number of replies that end the exchange, or None to wait for all.
            vectors: sizes of the method's vectors in a reply.
        """
        nodes = {ready.nodes[client]: client for client in contents}
        sizes = {client: payload_bytes(content) for client, content in contents.items()}
        limit = ReplyLimit.of(contents.values(), vectors or {})
        examples = ready.train_examples if kind == MessageType.TRAIN else ready.test_examples
        self.sent = SentMessages(nodes, sizes, lr, enough, limit, examples)
        return [Message(content, ready.nodes[client], kind) for client, content in contents.items()]

    def send(
        self, grid: Grid, prepared: Iterable[Message], phase: str, server_round: int
    ) -> RepliesByClient:
        """Send the prepared messages and wait for the replies, at most until the timeout.

        Args:
            grid: Flower's grid.
            prepared: the messages of `prepare`, which a caller may have changed.
            phase: "training", "evaluating" or "calibrating", for the live state.
            server_round: number of the round.
        """
        messages, sent, options = list(prepared), self.sent, self.options
        if not messages:
            return RepliesByClient({})
        since = time.time()
        replies = self._messenger.exchange(
            grid,
            messages[0].metadata.message_type,
            {sent.clients[m.metadata.dst_node_id]: m.content for m in messages},
            self._look,
            ExchangeLimits(
                self.timeout, sent.enough, options.retries, options.patience, sent.limit
            ),
            round=server_round,
            watch=lambda replies: self._show(phase, server_round, since, replies),
        )
        for client, reply in replies.replies.items():  # it may have moved to another node
            sent.clients[reply.metadata.src_node_id] = client
            _bound_texts(client, reply)
        self.sent = replace(
            sent, seconds=replies.seconds, missing=replies.missing, again=replies.again
        )
        return RepliesByClient(dict(sorted(replies.replies.items(), key=lambda r: by_client(r[0]))))

    def by_client(self, replies: Iterable[Message]) -> Mapping[ClientId, Message]:
        """Return the replies by client, sorted: the first one of each client that got a message."""
        if isinstance(replies, RepliesByClient):
            return replies.by_client
        clients, found = self.sent.clients, dict[ClientId, Message]()
        for reply in replies:
            client = clients.get(reply.metadata.src_node_id)
            if client is not None and client not in found:
                found[client] = reply
                _bound_texts(client, reply)
        return {client: found[client] for client in self.sent.cohort if client in found}

    def take_late(self) -> dict[ClientId, str]:
        """Return and forget which replies came after their deadline."""
        return self._messenger.take_late()

    def _look(self, grid: Grid) -> ReadyClients:
        self._ready = self.registry(grid)
        return self._ready

    def _show(self, phase: str, server_round: int, since: float, replies: Replies) -> None:
        self.show_live(
            LiveState(
                phase,
                server_round,
                self.rounds,
                since,
                since + self.timeout,
                ready=self._ready.clients,
                refused=dict(self._ready.refused),
                asked=self.sent.cohort,
                answered=dict(replies.seconds),
                again=list(replies.again),
                missing=dict(replies.missing),
                late=dict(self._messenger.late),
            )
        )


def _bound_texts(client: ClientId, reply: Message) -> None:
    """Bound the texts of a reply, and log what was left out."""
    if left_out := bound_texts(reply):
        logger.warning("the reply of client %s: %s", client, left_out)
