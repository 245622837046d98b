"""The full gradient of a client's loss, and the distance of its local steps from it."""

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
    """Return the gradient of the mean loss over the given samples, float64 [d].

    The model is in evaluation mode, without dropout and augmentation. The weights do not change.

    Args:
        flat: the model.
        data: the data set.
        indices: at least one sample, int64 [n].
    """
    flat.gradient.zero_()
    for logits, labels in outputs_in_batches(flat, data, indices):
        loss = cross_entropy(logits, labels, reduction="sum") / len(indices)
        loss.backward()  # type: ignore[no-untyped-call]
    gradient: Vector = flat.gradient.detach().cpu().numpy().astype(np.float64)
    return gradient


def gradient_metrics(
    first: Vector, last: Vector, received: Vector, returned: Vector, result: TrainingResult
) -> dict[str, float]:
    """Return the gradient metrics of a local training.

    With K steps and g = K (received - returned) / (sum of the learning rates), these are:

    - GRADIENT: |first|.
    - GRADIENT_ERROR: |g - K first|.
    - SMOOTHNESS: |last - first| / |returned - received|, a lower bound of the loss's smoothness
      constant L. It is absent if the weights did not change.

    Args:
        first: full gradient at the received weights [d].
        last: full gradient at the returned weights [d].
        received: weights before the steps [d].
        returned: weights after the steps [d].
        result: the local training, with at least one step.
    """
    difference = received.astype(np.float64) - returned
    distance = float(np.linalg.norm(difference))
    step_sum = difference * (result.steps / result.lr_sum)
    metrics = {
        GRADIENT: float(np.linalg.norm(first)),
        GRADIENT_ERROR: float(np.linalg.norm(step_sum - result.steps * first)),
    }
    if distance:
        metrics[SMOOTHNESS] = float(np.linalg.norm(last - first)) / distance
    return metrics
