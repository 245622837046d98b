"""RoundEvaluation: sends the model to clients for evaluation and collects their scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from common.errors import FedError
from common.runs.client_scores import ClientScore, Evaluation
from common.types import ClientId
from common.wire.messages import Order
from common.wire.reply_metrics import read_metrics
from server_app.round.error_reasons import refusal_of
from server_app.round.evaluation_replies import (
    NO_COUNT,
    MetricsFn,
    config_of,
    examples_of,
    mean_metrics,
    personal_of,
    score_of,
)
from server_app.round.order_content import order_content
from server_app.round.ready_clients import ReadyClients
from server_app.round.replies import refuse_more_examples
from server_app.round.round_exchange import RoundExchange
from server_app.state.options import Options
from server_app.state.server_model import ServerModel

T = TypeVar("T")


@dataclass
class _Scores:
    """The evaluation replies of a round, read one by one.

    Attributes:
        absent: the reason why a client has no score, by client.
        scores: by client.
        examples: number of test samples of each client whose reply can be read.
        contents: the content of these replies.
    """

    absent: dict[ClientId, str]
    scores: dict[ClientId, ClientScore] = field(default_factory=dict)
    examples: dict[ClientId, int] = field(default_factory=dict)
    contents: dict[ClientId, RecordDict] = field(default_factory=dict)

    def read(self, client: ClientId, reply: Message, weight_key: str, most: int | None) -> None:
        """Read the reply of one client. A bad reply concerns this client only."""
        try:
            examples = examples_of(reply, weight_key)
            refuse_more_examples("test", examples, most)
            score = score_of(read_metrics(reply.content), examples)
        except FedError as error:
            self.absent[client] = refusal_of(error)
            return
        self.contents[client], self.examples[client] = reply.content, examples
        if score is None:
            self.absent[client] = NO_COUNT
        else:
            self.scores[client] = score
            del self.absent[client]

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation, with that of the personal models if clients have some."""
        metrics = {client: read_metrics(content) for client, content in self.contents.items()}
        absent = {c: reason for c, reason in self.absent.items() if c not in self.contents}
        personal = personal_of(metrics, self.examples, absent)
        return replace(Evaluation.of(self.scores, self.absent), personal=personal)


class RoundEvaluation:
    """The evaluation of the model on the clients, in a round or after the last one.

    Args:
        options: how rounds run.
        exchange: sends the orders.
        model: the model to evaluate.
    """

    def __init__(self, options: Options, exchange: RoundExchange, model: ServerModel) -> None:
        self.options, self.exchange, self.model = options, exchange, model

    def orders(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        *,
        kind: str = MessageType.EVALUATE,
        has_lr: bool = False,
    ) -> list[Message]:
        """Return an order to evaluate for each sampled client.

        Args:
            server_round: number of the round.
            arrays: the trained model.
            config: values to add to the order.
            grid: Flower's grid.
            kind: Flower's message type.
            has_lr: whether the server sets the local learning rate.
        """
        options, exchange = self.options, self.exchange
        if options.fraction_evaluate == 0:
            return exchange.prepare(ReadyClients({}), {}, kind)
        evaluated = self.model.load_to_evaluate(arrays)
        ready, clients = exchange.sample(
            grid, options.fraction_evaluate, options.min_evaluate_nodes, server_round
        )
        lr, digest = exchange.sent.lr, self.model.layout.digest
        orders = {
            client: Order(server_round, lr, digest, {}, client, exchange.timeout)
            for client in clients
        }
        contents = {
            client: order_content(evaluated, config, order, options, has_lr=has_lr)
            for client, order in orders.items()
        }
        return exchange.prepare(ready, contents, kind)

    def aggregate(
        self, replies: Mapping[ClientId, Message], metrics_fn: MetricsFn | None
    ) -> tuple[Evaluation, MetricRecord | None]:
        """Return the evaluation and the weighted mean of the clients' metrics.

        Undefined values are absent, neither 0 nor NaN.
        """
        cohort, weight_key = self.exchange.sent.cohort, self.options.weighted_by_key
        read = _Scores(self.exchange.sent.reasons(cohort))
        for client in cohort:
            if client in replies:
                most = self.exchange.sent.most_examples.get(client)
                read.read(client, replies[client], weight_key, most)
        useful = [client for client, examples in read.examples.items() if examples]
        metrics = mean_metrics(
            [read.contents[client] for client in useful],
            [read.examples[client] for client in useful],
            weight_key,
            metrics_fn,
        )
        return read.evaluation, metrics

    def query(
        self,
        grid: Grid,
        action: str,
        values: Mapping[str, Any],
        read: Callable[[ConfigRecord], T],
        *,
        has_lr: bool = False,
    ) -> tuple[dict[ClientId, T], dict[ClientId, str]]:
        """Send the evaluated model to clients for another action than evaluation.

        Args:
            grid: Flower's grid.
            action: name of the ClientApp's evaluate function that replies.
            values: values to add to the order.
            read: reads the ConfigRecord of a reply. Raises FedError if it cannot be used.
            has_lr: whether the server sets the local learning rate.

        Returns:
            The results of `read` by client, and the reason why each other client has none.

        Raises:
            AggregationError: too few clients connect within the timeout.
        """
        arrays, server_round = self.model.packed, self.model.current_state.round
        assert arrays is not None, "no model is loaded yet"
        kind, config = f"{MessageType.EVALUATE}.{action}", ConfigRecord(dict(values))
        orders = self.orders(server_round, arrays, config, grid, kind=kind, has_lr=has_lr)
        replies = self.exchange.send(grid, orders, "calibrating", server_round).by_client
        missing = self.exchange.sent.reasons(self.exchange.sent.cohort)
        results: dict[ClientId, T] = {}
        for client, reply in replies.items():
            try:
                results[client] = read(config_of(reply))
                del missing[client]
            except FedError as error:
                missing[client] = refusal_of(error)
        return results, missing
