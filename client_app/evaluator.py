"""Evaluate a model on one client's samples."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from common.data.dataset import Dataset
from common.data.image_batches import load_images, normalise
from common.models import FlatModel

BATCH = 128  # with more, the activations do not fit into the processor's cache
GPU_BATCH = 1024


@dataclass(frozen=True)
class EvaluationResult:
    """Number of samples, correct predictions, and the summed loss in nats."""

    examples: int
    correct: int
    loss_sum: float


@torch.inference_mode()
def evaluate(flat: FlatModel, data: Dataset, indices: NDArray[np.int64]) -> EvaluationResult:
    """Count the correct predictions on the given samples (possibly none)."""
    correct = torch.zeros((), dtype=torch.int64, device=flat.device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=flat.device)
    for logits, labels in outputs_in_batches(flat, data, indices):
        correct += (logits.argmax(1) == labels).sum()
        loss_sum += cross_entropy(logits, labels, reduction="sum")
    return EvaluationResult(len(indices), int(correct), float(loss_sum))


@torch.inference_mode()
def logits_of(flat: FlatModel, data: Dataset, indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the logits [n, C] of the given samples (possibly none)."""
    parts = [logits.double().cpu().numpy() for logits, _ in outputs_in_batches(flat, data, indices)]
    return np.concatenate([np.zeros((0, len(data.classes))), *parts])


def outputs_in_batches(
    flat: FlatModel, data: Dataset, indices: NDArray[np.int64]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits [b, C] and labels [b], with the model in evaluation mode.

    The caller decides whether torch records gradients.
    """
    flat.model.eval()
    size = GPU_BATCH if flat.device.type == "cuda" else BATCH
    for start in range(0, len(indices), size):
        chosen = indices[start : start + size]
        images, labels = load_images(data, chosen, flat.device)
        yield flat.outputs(normalise(images, data.mean, data.std)), labels
