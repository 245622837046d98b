"""Local training: K counted SGD steps on one flat vector of weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import fsum, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from client_app.batches import TrainingBatches, batch_slices
from client_app.cuda_graph import ComputeGradient, with_cuda_graph
from common.config_groups import TrainConfig
from common.data.dataset import Dataset
from common.data.image_batches import normalise
from common.errors import ClientError
from common.methods import LocalRule
from common.models import FlatModel
from common.rng import address
from common.types import Vector

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
AUTOCAST = {"float32": None, "bfloat16": torch.bfloat16}  # by train.precision


@dataclass(frozen=True)
class TrainingResult:
    """The result of a local training.

    Attributes:
        steps: number K of optimiser steps taken.
        lr_sum: sum of their learning rates.
        examples: number of samples used at least once.
        loss: mean mini-batch loss, weighted by batch size.
    """

    steps: int
    lr_sum: float
    examples: int
    loss: float


def train(
    flat: FlatModel,
    data: Dataset,
    indices: NDArray[np.int64],
    plan: TrainConfig,
    rule: LocalRule,
    *,
    lr: float | Callable[[int], float],
    seed: int,
    path: tuple[int | str, ...],
) -> TrainingResult:
    """Run plan.epochs epochs of SGD in place, from the weights that `flat` holds.

    Each step is w <- w - lr * (gradient + shift on the block + proximal_weight * (w - anchor)).
    Momentum works outside the block only. `rule.full_batch` means one step on all samples.

    Args:
        flat: the model, loaded with the received weights.
        data: the data set.
        indices: this client's training samples, int64 [n].
        plan: epochs, batch size and so on.
        rule: what the method adds.
        lr: the learning rate, or a function of the step's number from 0.
        seed: the run's seed.
        path: address of this training, normally (round, client).

    Returns:
        The result, with 0 steps if there are no samples.

    Raises:
        ClientError: the loss is not finite. The model must not be used.
    """
    if rule.full_batch:
        plan = replace(plan, epochs=1, batch_size=max(len(indices), 1))
    is_single = len(indices) == 1 or plan.batch_size == 1
    has_norms = _set_training_mode(flat, batch_statistics=not is_single)
    flat.generator.manual_seed(address(seed, "dropout", *path) % 2**63)
    slices = batch_slices(
        len(indices),
        plan.batch_size,
        drop_last=plan.drop_last,
        no_single=has_norms and plan.batch_size > 1,
    )
    batches = TrainingBatches(data, indices, slices, flat.device, plan.augment, seed, path)
    compute_gradient: ComputeGradient = partial(
        _compute_gradient, flat, data, AUTOCAST[plan.precision]
    )
    if plan.cuda_graph and flat.device.type == "cuda" and not rule.full_batch:
        key = (plan.precision, is_single, data.mean, data.std)
        compute_gradient = with_cuda_graph(flat, compute_gradient, plan.batch_size, *key)
    optimiser = _Optimiser(flat, plan, rule)
    rates = [lr(k) if callable(lr) else lr for k in range(plan.epochs * len(slices))]
    losses = torch.zeros(len(rates), device=flat.device)
    steps = chain.from_iterable(map(batches.epoch, range(plan.epochs)))
    for step, (images, labels) in enumerate(steps):
        losses[step] = compute_gradient(images, labels)
        optimiser.step(rates[step])
    sizes = [batch.stop - batch.start for batch in slices] * plan.epochs
    mean = _mean_loss(losses.tolist(), sizes, rates)
    return TrainingResult(len(rates), fsum(rates), batches.examples(plan.epochs), mean)


def _set_training_mode(flat: FlatModel, *, batch_statistics: bool) -> bool:
    """Set the model to training mode. Return whether it has batch normalisation.

    Without `batch_statistics` batch normalisation uses its running statistics, because a single
    sample has no variance.
    """
    flat.model.train()
    norms = [m for m in flat.model.modules() if isinstance(m, BATCH_NORMS)]
    for norm in norms:
        norm.train(batch_statistics)
    return bool(norms)


def _compute_gradient(
    flat: FlatModel, data: Dataset, dtype: torch.dtype | None, images: Tensor, labels: Tensor
) -> Tensor:
    """Write the gradient of the mean loss to `flat.gradient`. Return the loss as a tensor.

    Args:
        flat: the model.
        data: the data set, for its mean and standard deviation.
        dtype: precision of convolutions and matrix products. None keeps the weights' precision.
        images: uint8 [b, c, h, w].
        labels: int64 [b].
    """
    flat.gradient.zero_()
    with torch.autocast(flat.device.type, dtype, enabled=dtype is not None, cache_enabled=False):
        logits = flat.outputs(normalise(images, data.mean, data.std))
    loss = cross_entropy(logits.to(flat.weights.dtype), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _mean_loss(losses: list[float], sizes: list[int], rates: list[float]) -> float:
    """Return the mean loss over samples, from the mean losses of the batches.

    The losses are checked here once, because reading a value after each step would stall the GPU.

    Raises:
        ClientError: a loss is not finite.
    """
    for step, (loss, rate) in enumerate(zip(losses, rates, strict=True), start=1):
        if not isfinite(loss):
            raise ClientError(
                f"the loss became {loss} in local step {step} (lr {rate:g}); lower train.lr"
            )
    return fsum(x * n for x, n in zip(losses, sizes, strict=True)) / max(sum(sizes), 1)


class _Optimiser:
    """SGD on the flat vector, with the terms that the method adds."""

    def __init__(self, flat: FlatModel, plan: TrainConfig, rule: LocalRule) -> None:
        self.flat, self.rule = flat, rule
        self.weight_decay = plan.weight_decay
        self.momentum = plan.momentum if rule.momentum is None else rule.momentum
        self.anchor = None
        if rule.proximal_weight:
            anchor = self._on_device(rule.anchor)
            self.anchor = flat.weights.clone() if anchor is None else anchor
        self.shift = self._on_device(rule.shift)
        self.outside = rule.block.outside(flat.layout.size)
        self.velocity = (
            [torch.zeros_like(flat.weights[span]) for span in self.outside.spans]
            if self.momentum
            else []
        )

    def _on_device(self, vector: Vector | None) -> Tensor | None:
        if vector is None:
            return None
        return torch.from_numpy(np.array(vector)).to(self.flat.weights)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        weights, gradient = self.flat.weights, self.flat.gradient
        if self.weight_decay:
            gradient.add_(weights, alpha=self.weight_decay)
        if self.anchor is not None:
            gradient.add_(weights - self.anchor, alpha=self.rule.proximal_weight)
        if self.shift is not None:
            for span, part in self.rule.block.pieces(self.shift):
                gradient[span].add_(part)
        for span, velocity in zip(self.outside.spans, self.velocity, strict=False):
            velocity.mul_(self.momentum).add_(gradient[span])
            gradient[span].copy_(velocity)
        weights.add_(gradient, alpha=-rate)
