"""Checks of a reply's buffers, which are averaged outside of the method.

PyTorch's normalisation layers give their buffers these names, and a state dict tells nothing else
about a buffer's meaning. So the rules below go by the last part of the name.
"""

import numpy as np

from common.errors import AggregationError
from common.geometry import length
from common.types import Buffers

VARIANCE, COUNTER = "running_var", "num_batches_tracked"


def refuse_impossible_buffers(buffers: Buffers, sent: Buffers) -> None:
    """Check that no variance is negative and that no counter runs backwards.

    Args:
        buffers: the finite buffers of the reply, by name.
        sent: the buffers that the client received, by name.

    Raises:
        AggregationError: a buffer is impossible. The message names it.
    """
    for name, values in buffers.items():
        kind = name.rpartition(".")[2]
        if kind == VARIANCE and (values < 0).any():
            raise AggregationError(f"{name} has the variance {values.min():g}, which is below 0")
        if kind == COUNTER and (values < sent[name]).any():
            raise AggregationError(
                f"{name} is {int(values.min())}, and the client received "
                f"{int(sent[name].max())}: a counter does not run backwards"
            )


def buffers_length(buffers: Buffers, sent: Buffers) -> float | None:
    """Return the length of the difference of all float buffers, None without any.

    Args:
        buffers: the finite buffers of the reply, by name.
        sent: the buffers that the client received, by name.
    """
    parts = [
        np.ravel(values).astype(np.float64) - np.ravel(sent[name]).astype(np.float64)
        for name, values in buffers.items()
        if values.dtype.kind == "f"
    ]
    return length(np.concatenate(parts)) if parts else None
