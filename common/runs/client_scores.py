"""The evaluation of a model on the test samples of every client."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from common.fairness import Fairness, clients_without_examples, fairness
from common.io.typed_json import FiniteFloat, Int64, JsonTypeError, from_json
from common.types import ClientId

NO_EXAMPLES = "no test examples"


@dataclass(frozen=True)
class ClientScore:
    """The score of one client.

    Attributes:
        examples: number of test samples.
        correct: number of correctly classified ones.
        loss_sum: their summed loss in nats, None if the client does not report it.
    """

    examples: Int64
    correct: Int64
    loss_sum: FiniteFloat | None

    @property
    def accuracy(self) -> float:
        """Share of the test samples that were classified correctly."""
        return self.correct / self.examples


@dataclass(frozen=True)
class Evaluation:
    """The scores of the clients for the model of one round.

    Attributes:
        clients: the scores by client.
        absent: the reason why each other client has no score.
        fairness: summary of the scores, None without any.
        personal: the evaluation of the clients' personal models, None without any.
        untrained: in `personal`, the clients whose personal model is still the global one.
    """

    clients: dict[ClientId, ClientScore]
    absent: dict[ClientId, str]
    fairness: Fairness | None
    personal: "Evaluation | None" = None
    untrained: list[ClientId] = field(default_factory=list)

    @classmethod
    def of(
        cls, scores: Mapping[ClientId, ClientScore], absent: Mapping[ClientId, str]
    ) -> "Evaluation":
        """Return the evaluation. A client without test samples moves to `absent`.

        Raises:
            DataError: a client's counts are impossible.
        """
        counts = {client: (score.correct, score.examples) for client, score in scores.items()}
        empty = clients_without_examples(counts)
        return cls(
            clients={client: score for client, score in scores.items() if client not in empty},
            absent={**absent, **dict.fromkeys(empty, NO_EXAMPLES)},
            fairness=fairness(counts),
        )

    @property
    def accuracies(self) -> dict[ClientId, float]:
        """The accuracy of each client that has a score."""
        return {client: score.accuracy for client, score in self.clients.items()}

    @property
    def loss(self) -> float | None:
        """Mean loss per sample over the clients whose loss is finite, None without any."""
        known = [(s.loss_sum, s.examples) for s in self.clients.values() if s.loss_sum is not None]
        finite = [(loss, examples) for loss, examples in known if isfinite(loss)]
        examples = sum(number for _, number in finite)
        return sum(loss for loss, _ in finite) / examples if examples else None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation from parsed JSON.

        Raises:
            JsonTypeError: a part is missing or has the wrong type.
        """
        return from_json(cls, value).checked()

    def checked(self, *place: str) -> "Evaluation":
        """Return the evaluation itself after checking the counts of every client.

        Args:
            place: keys that lead to the evaluation in the file, for the error message.

        Raises:
            JsonTypeError: the counts are not 0 <= correct <= examples with examples >= 1.
        """
        for client, score in self.clients.items():
            if not 0 <= score.correct <= score.examples or not score.examples:
                came = f"{score.correct} of {score.examples}"
                problem = f"expected 0 <= correct <= examples, and at least one, got '{came}'"
                raise JsonTypeError(problem, (*place, "clients", client))
        if self.personal:
            self.personal.checked(*place, "personal")
        return self
