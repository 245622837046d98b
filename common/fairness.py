"""How well and how evenly the clients are served, from their numbers of correct answers.

A client without test examples has no accuracy. It is left out and listed, never counted as 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum, sqrt

from common.errors import DataError
from common.io.typed_json import FiniteFloat, Int64
from common.types import ClientId


@dataclass(frozen=True)
class Fairness:
    """Accuracy over the clients that had test examples, all in [0, 1].

    Attributes:
        clients: number of clients with test examples, N.
        mean: unweighted mean over the clients.
        mean_weighted: mean over all test examples.
        worst10: mean of the ceil(N / 10) smallest accuracies.
        spread: population standard deviation (divided by N, not N - 1).
        jain: Jain's index (sum a)^2 / (N sum a^2), from 1/N to 1 (all equal). 0 if all are 0.
        minimum: smallest accuracy of a client.
        maximum: largest accuracy of a client.
    """

    clients: Int64
    mean: FiniteFloat
    mean_weighted: FiniteFloat
    worst10: FiniteFloat
    spread: FiniteFloat
    jain: FiniteFloat
    minimum: FiniteFloat
    maximum: FiniteFloat


def accuracies(counts: Mapping[ClientId, tuple[int, int]]) -> dict[ClientId, float]:
    """Return correct / examples for each client that has examples.

    Args:
        counts: (correct, examples) per client.

    Raises:
        DataError: a client's correct answers are negative or more than its examples.

    >>> accuracies({"a": (1, 4), "b": (0, 0)})
    {'a': 0.25}
    """
    for client, (correct, examples) in counts.items():
        if not 0 <= correct <= examples:
            raise DataError(
                f"client {client} reports {correct} correct of {examples} test examples; "
                "expected 0 <= correct <= examples: leave this client's counts out"
            )
    return {client: right / total for client, (right, total) in counts.items() if total}


def clients_without_examples(counts: Mapping[ClientId, tuple[int, int]]) -> tuple[ClientId, ...]:
    """Return the clients without test examples, in the given order."""
    return tuple(client for client, (_, examples) in counts.items() if examples == 0)


def fairness(counts: Mapping[ClientId, tuple[int, int]]) -> Fairness | None:
    """Return the summary of (correct, examples) per client, or None if no client has examples.

    The sums are exact before rounding, so the order of the clients changes no bit.

    Raises:
        DataError: a client's counts are impossible.

    >>> found = fairness({"a": (1, 4), "b": (3, 4), "c": (0, 0)})
    >>> found.clients, found.mean, found.worst10, found.spread, found.jain
    (2, 0.5, 0.25, 0.25, 0.8)
    """
    values = sorted(accuracies(counts).values())
    if not values:
        return None
    number = len(values)
    mean = fsum(values) / number
    worst = values[: worst_count(number)]
    squares = fsum(value * value for value in values)
    return Fairness(
        clients=number,
        mean=mean,
        mean_weighted=sum(c for c, _ in counts.values()) / sum(n for _, n in counts.values()),
        worst10=fsum(worst) / len(worst),
        spread=sqrt(fsum((value - mean) ** 2 for value in values) / number),
        jain=fsum(values) ** 2 / (number * squares) if squares else 0.0,
        minimum=values[0],
        maximum=values[-1],
    )


def worst_count(clients: int) -> int:
    """Return ceil(clients / 10) in integers, because 0.1 * 70 is more than 7 in floating point.

    >>> worst_count(70), worst_count(71)
    (7, 8)
    """
    return -(-clients // 10)


def rounds_to_reach(curve: Iterable[tuple[int, float]], target: float) -> int | None:
    """Return the first round whose accuracy is at least `target`, or None if there is none.

    Args:
        curve: (round, mean accuracy) of the evaluated rounds, in order.
        target: for instance another method's final mean accuracy.

    >>> rounds_to_reach([(5, 0.4), (10, 0.6)], 0.5)
    10
    """
    return next((number for number, accuracy in curve if accuracy >= target), None)
