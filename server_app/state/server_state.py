"""ServerState: the state of the server between rounds."""

from dataclasses import dataclass
from math import isnan
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.errors import AggregationError
from common.geometry import differences
from common.layout import Layout
from common.methods import Method
from common.parallel import one_blas_thread
from common.types import Buffers, Cohort, Step, Vector

S = TypeVar("S")


@dataclass(frozen=True)
class ServerState(Generic[S]):
    """The state after `round` rounds. A checkpoint holds exactly this value.

    Attributes:
        round: number of finished rounds.
        weights: the global model [d].
        buffers: its buffers, by name.
        method: state of the method.
    """

    round: int
    weights: Vector
    buffers: Buffers
    method: S

    @classmethod
    def first(
        cls, layout: Layout, weights: Vector, buffers: Buffers, method: Method[S]
    ) -> "ServerState[S]":
        """Return the state before round 1."""
        return cls(0, weights, buffers, method.init(layout))


def next_state(
    state: ServerState[S], cohort: Cohort, method: Method[S], layout: Layout, server_lr: float
) -> tuple[ServerState[S], Step[S]]:
    """Return the state after the cohort's round, and the step. A pure function.

    Raises:
        AggregationError: the method cannot form a step, or the step leaves the range of the dtype.
    """
    with one_blas_thread():
        step = method.aggregate(cohort, state.method, layout)
    direction = step.direction
    if server_lr != 1:
        with np.errstate(over="ignore", invalid="ignore"):
            direction = direction * direction.dtype.type(server_lr)
    (weights,), (step_length,) = differences(state.weights, [direction])
    if isnan(step_length):
        raise AggregationError(
            f"the step of round {cohort.round} makes weights that are not finite "
            f"{weights.dtype} numbers; lower server.lr or train.lr"
        )
    buffers = {name: average_buffer(cohort, name) for name in state.buffers}
    return ServerState(cohort.round, weights, buffers, step.state), step


def evaluated_weights(state: ServerState[S], method: Method[S], server_lr: float) -> Vector:
    """Return the model to evaluate and save [d]. For most methods it is that in `state`."""
    offset = method.evaluation_offset(state.method)
    if offset is None:
        return state.weights
    dtype = state.weights.dtype
    weights: Vector = state.weights + dtype.type(server_lr) * offset.astype(dtype, copy=False)
    return weights


def average_buffer(cohort: Cohort, name: str) -> NDArray[Any]:
    """Return one buffer's mean over the cohort, weighted by examples, in its own dtype.

    A counter (BatchNorm's num_batches_tracked) is not averaged: the result is the largest.
    """
    values = np.stack([update.buffers[name] for update in cohort.updates])
    if values.dtype.kind != "f":
        largest: NDArray[Any] = values.max(axis=0)
        return np.asarray(largest)
    mean = np.tensordot(cohort.shares, values.astype(np.float64), axes=1)
    return np.asarray(mean, dtype=values.dtype)
