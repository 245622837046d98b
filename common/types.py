"""The values that pass between the layers. Vectors are flat; `common.layout` knows their parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.parallel import blocks, map_spans

Vector: TypeAlias = NDArray[Any]  # [d], float32 from the wire; methods accept float64 as well
Matrix: TypeAlias = NDArray[np.float64]  # [m, n]
Buffers: TypeAlias = Mapping[str, NDArray[Any]]  # BatchNorm statistics and the like, by name
ClientId: TypeAlias = str  # stable across rounds, restarts and node ids

# Metrics of a reply that a method may need. The losses are in nats: the mean over the mini-batches
# of the local training, and the loss of the received model on all training samples of the client.
LOSS, LOSS_BEFORE = "loss", "loss-before"
STEPS = "steps"  # number of local steps

S = TypeVar("S")
MEAN_COLUMNS = 2**16  # of a block of a mean, which fits into a core's cache


def by_client(client: ClientId) -> tuple[int, str]:
    """Return the sort key of a client id: "2" before "10", names in alphabetical order."""
    return len(client), client


@dataclass(frozen=True)
class ClientUpdate:
    """A client's accepted reply, as the server uses it.

    Attributes:
        client: id of the client.
        examples: number of training samples used, > 0. The weight in a weighted mean.
        steps: number of optimiser steps K, counted by the trainer.
        lr_sum: sum of the learning rates of these steps, K * lr for a constant rate.
        delta: displacement [d], the model sent minus the model returned. Subtracting it moves
            toward the client.
        buffers: the client's buffers after training, by name.
        client_payload: the method's own vectors of the reply, by name.
        metrics: numbers that the client reported (loss, seconds, ...).
    """

    client: ClientId
    examples: int
    steps: int
    lr_sum: float
    delta: Vector
    buffers: Buffers = field(default_factory=dict)
    client_payload: Mapping[str, Vector] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cohort:
    """The accepted replies of one round, sorted by client: their order of arrival has no effect.

    Attributes:
        round: the round's number, from 1.
        local_lr: the local learning rate of this round.
        clients: number of clients of the federation, N.
        updates: at least one reply.
    """

    round: int
    local_lr: float
    clients: int
    updates: tuple[ClientUpdate, ...]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.updates, key=lambda update: by_client(update.client)))
        object.__setattr__(self, "updates", ordered)

    @cached_property
    def shares(self) -> Vector:
        """Each client's share of the cohort's examples, n_i / sum n_j [m], float64."""
        examples = np.array([update.examples for update in self.updates], dtype=np.float64)
        shares: Vector = examples / examples.sum()
        return shares

    @cached_property
    def equal_shares(self) -> Vector:
        """1/m for each client [m], float64."""
        return np.full(len(self.updates), 1.0) / len(self.updates)

    def metric(self, name: str) -> Vector:
        """Return each client's value of a metric [m], float64."""
        return np.array([update.metrics[name] for update in self.updates], dtype=np.float64)

    def by_client(self, values: Vector) -> dict[ClientId, float]:
        """Return one number per client [m] by client id."""
        clients = (update.client for update in self.updates)
        return dict(zip(clients, values.tolist(), strict=True))

    def mean(self, shares: Vector) -> Vector:
        """Return sum_i shares_i * delta_i [d], added up in the order of the client ids.

        It needs no [m, d] copy, and its bits do not depend on the order in which a BLAS adds up.
        """
        deltas = [update.delta for update in self.updates]
        total = np.empty_like(deltas[0])
        factors = shares.astype(total.dtype)

        def add(span: slice) -> None:
            scaled = np.empty(MEAN_COLUMNS, total.dtype)
            for columns in blocks(span, MEAN_COLUMNS):
                part = np.multiply(deltas[0][columns], factors[0], out=total[columns])
                for factor, delta in zip(factors[1:], deltas[1:], strict=True):
                    part += np.multiply(delta[columns], factor, out=scaled[: part.size])

        map_spans(total.size, add)
        return total


@dataclass(frozen=True)
class Step(Generic[S]):
    """The result of a round: w <- w - server_lr * direction, and the method's next state.

    Attributes:
        direction: the direction [d].
        state: what the method remembers after the round.
        report: numbers for the round's record, by name.
    """

    direction: Vector
    state: S
    report: Mapping[str, Any] = field(default_factory=dict)
