"""Local training: K counted SGD steps on one flat vector of weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from common.config import TrainConfig
from common.data.batches import augment, normalise, pictures
from common.data.dataset import Dataset
from common.errors import ClientError
from common.methods import LocalRule
from common.models import Dropout, FlatModel
from common.rng import address, stream
from common.types import Vector

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(frozen=True)
class Trained:
    """What local training did.

    Attributes:
        steps: optimiser steps K really taken.
        lr_sum: sum of their learning rates.
        examples: samples that were used at least once.
        loss: mean mini-batch loss, weighted by batch size.
    """

    steps: int
    lr_sum: float
    examples: int
    loss: float


def batches(count: int, size: int, *, drop_last: bool, no_single: bool) -> list[slice]:
    """Return where in an epoch's order of `count` samples its batches lie.

    Args:
        count: number of samples.
        size: samples of a batch; the last one may have fewer.
        drop_last: leave out an incomplete last batch.
        no_single: join a last batch of one sample to the one before it, since batch
            normalisation cannot train on a single value per channel.
    """
    if drop_last:
        count -= count % size
    edges = [*range(0, count, size), count]
    if no_single and len(edges) > 2 and edges[-1] - edges[-2] == 1:
        del edges[-2]
    return [slice(*edge) for edge in pairwise(edges)]


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
) -> Trained:
    """Run plan.epochs of SGD from the weights that `flat` holds, in place.

    Each step is w <- w - lr * (gradient + shift on the block + pull * (w - anchor)); momentum
    works outside the block alone. A rule with `full_batch` replaces all of them by one step on
    one batch of all samples.

    Args:
        flat: model, loaded with the weights received.
        data: the data set.
        indices: this client's training samples.
        plan: epochs, batch size and so on.
        rule: what the method adds.
        lr: the learning rate, or a function of the step's number from 0.
        seed: the run's seed.
        path: address of this training, normally (round, client).

    Returns:
        The counted steps; 0 of them when there is nothing to train on.

    Raises:
        ClientError: the loss is not finite; the model is then not to be used.
    """
    if rule.full_batch:
        plan = replace(plan, epochs=1, batch_size=max(len(indices), 1))
    model, device = flat.model, flat.device
    norms = [m for m in model.modules() if isinstance(m, BATCH_NORMS)]
    model.train()
    if norms and (len(indices) == 1 or plan.batch_size == 1):
        for norm in norms:  # a single sample has no statistics: the running ones are used
            norm.eval()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.generator = _generator(device, seed, path)

    spans = batches(
        len(indices),
        plan.batch_size,
        drop_last=plan.drop_last,
        no_single=bool(norms) and plan.batch_size > 1,
    )
    rates = [lr(k) if callable(lr) else lr for k in range(plan.epochs * len(spans))]
    losses = torch.zeros(len(rates), device=device)
    used = np.zeros(len(indices), dtype=bool)
    optimiser = _Optimiser(flat, plan, rule)
    reached = spans[-1].stop if spans else 0
    for epoch in range(plan.epochs):
        order = stream(seed, "batches", *path, epoch).permutation(len(indices))
        used[order[:reached]] = True
        for step, span in enumerate(spans, start=epoch * len(spans)):
            pixels, labels = pictures(data, indices[order[span]], device)
            if plan.augment:
                rng = stream(seed, "augment", *path, step)
                pixels = augment(pixels, rng, flip=data.flip)
            flat.gradient.zero_()
            loss = cross_entropy(flat.outputs(normalise(pixels, data.mean, data.std)), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step(rates[step])
            losses[step] = loss.detach()
    sizes = [span.stop - span.start for span in spans] * plan.epochs
    mean = _mean_loss(losses.tolist(), sizes, rates)
    return Trained(len(rates), fsum(rates), int(used.sum()), mean)


def _mean_loss(losses: list[float], sizes: list[int], rates: list[float]) -> float:
    """Return the mean over samples, from the means of the batches.

    The losses are looked at here, all at once and not after each step: a look makes the device
    wait for the host.
    """
    for step, (loss, rate) in enumerate(zip(losses, rates, strict=True), start=1):
        if not isfinite(loss):
            raise ClientError(
                f"the loss became {loss} in local step {step} (lr {rate:g}); lower train.lr"
            )
    return fsum(x * n for x, n in zip(losses, sizes, strict=True)) / max(sum(sizes), 1)


class _Optimiser:
    """SGD on the flat vector with what the method adds."""

    def __init__(self, flat: FlatModel, plan: TrainConfig, rule: LocalRule) -> None:
        self.flat, self.rule = flat, rule
        self.weight_decay = plan.weight_decay
        self.momentum = plan.momentum if rule.momentum is None else rule.momentum
        self.anchor = None
        if rule.pull:
            anchor = self._on_device(rule.anchor)
            self.anchor = flat.weights.clone() if anchor is None else anchor
        self.shift = self._on_device(rule.shift)
        self.outside = rule.block.outside(flat.layout.size)
        self.velocity = (
            [torch.zeros_like(flat.weights[span]) for span in self.outside.spans]
            if self.momentum
            else []
        )

    def _on_device(self, vector: Vector | None) -> torch.Tensor | None:
        if vector is None:
            return None
        return torch.from_numpy(np.array(vector)).to(self.flat.weights)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        weights, gradient = self.flat.weights, self.flat.gradient
        if self.weight_decay:
            gradient.add_(weights, alpha=self.weight_decay)
        if self.anchor is not None:
            gradient.add_(weights - self.anchor, alpha=self.rule.pull)
        if self.shift is not None:
            for span, part in self.rule.block.pieces(self.shift):
                gradient[span].add_(part)
        for span, velocity in zip(self.outside.spans, self.velocity, strict=False):
            velocity.mul_(self.momentum).add_(gradient[span])
            gradient[span].copy_(velocity)
        weights.add_(gradient, alpha=-rate)


def _generator(device: torch.device, seed: int, path: tuple[int | str, ...]) -> torch.Generator:
    generator = torch.Generator(device=device)
    return generator.manual_seed(address(seed, "dropout", *path) % 2**63)
