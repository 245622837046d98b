"""The full gradient of a client's loss, and how far its local steps are from it: numbers only."""

import numpy as np
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from client_app.evaluator import outputs_in_batches
from client_app.trainer import TrainingResult
from common.data.dataset import Dataset
from common.models import FlatModel
from common.types import Vector
from common.wire.reply_metrics import GRADIENT, GRADIENT_ERROR, SMOOTHNESS


def full_gradient(flat: FlatModel, data: Dataset, indices: NDArray[np.int64]) -> Vector:
    """Return the gradient [d], float64, of the mean loss over samples, at least one.

    As in evaluation: without dropout and augmentation, and with the running statistics where
    there is batch normalisation. The weights stay as they are.
    """
    flat.gradient.zero_()
    for logits, labels in outputs_in_batches(flat, data, indices):
        loss = cross_entropy(logits, labels, reduction="sum") / len(indices)
        loss.backward()  # type: ignore[no-untyped-call]
    gradient: Vector = flat.gradient.detach().cpu().numpy().astype(np.float64)
    return gradient


def gradient_metrics(
    first: Vector, last: Vector, received: Vector, returned: Vector, done: TrainingResult
) -> dict[str, float]:
    """Return what is reported of a training, with g = K (received - returned) / sum of the rates.

    Args:
        first: full gradient at the weights received [d].
        last: full gradient at the weights returned [d].
        received: weights [d].
        returned: weights [d].
        done: the steps between them, at least one.

    Returns:
        |first|, |g - K first|, and |last - first| / |returned - received|, which no smoothness L
        of the loss is below; the last is absent if the weights did not move.
    """
    moved = received.astype(np.float64) - returned
    way = float(np.linalg.norm(moved))
    total = moved * (done.steps / done.lr_sum)
    told = {
        GRADIENT: float(np.linalg.norm(first)),
        GRADIENT_ERROR: float(np.linalg.norm(total - done.steps * first)),
    }
    return told | ({SMOOTHNESS: float(np.linalg.norm(last - first)) / way} if way else {})
