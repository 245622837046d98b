"""The errors that FedKeel raises on purpose.

A message says what was expected, what came, from which client, and what to do.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FedError(Exception):
    """Base of every error that FedKeel raises on purpose."""


class ConfigError(FedError):
    """The run config cannot be used; the message lists every problem at once."""


class DataError(FedError):
    """A data set, partition or split is missing, broken or impossible."""


class WireError(FedError):
    """A message does not hold what it should. The code that catches it names the sender."""


class AggregationError(FedError):
    """The replies are not enough to compute the next model."""


class CheckpointError(FedError):
    """A checkpoint is damaged, or belongs to another run."""


class ClientError(FedError):
    """A client cannot do its task: no such device, loss not finite, no data."""


class DeployError(FedError):
    """A key, a certificate, a connection or a node is not usable for a deployment."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ' (did you mean "x"?)' for the known word nearest to `word`, or ''."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f' (did you mean "{near[0]}"?)' if near else ""
