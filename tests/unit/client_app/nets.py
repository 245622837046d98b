"""A small model on small pictures, and one call of the trainer."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from client_app.trainer import TrainingResult, train
from common.config_groups import TrainConfig
from common.data import Dataset
from common.methods import LocalRule
from common.models import FlatModel
from common.rng import stream

PLAN = TrainConfig(batch_size=8, lr=0.1)


class Net(nn.Module):
    """4x4 pixels - 3 classes, with or without something in between."""

    def __init__(self, middle: nn.Module | None = None, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), middle or nn.Identity())
        self.classifier = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(x))
        return logits


def flat_of(model: nn.Module, seed: int = 0) -> FlatModel:
    flat = FlatModel(model)
    values = stream(seed, "weights").normal(size=flat.layout.size) * 0.2
    flat.weights.copy_(torch.from_numpy(values))
    return flat


def run(
    flat: FlatModel,
    data: Dataset,
    plan: TrainConfig = PLAN,
    rule: LocalRule | None = None,
    *,
    count: int | None = None,
    lr: float | Callable[[int], float] = 0.1,
    path: tuple[int | str, ...] = (1, "0"),
) -> TrainingResult:
    return train(
        flat, data, np.arange(len(data) if count is None else count), plan, rule or LocalRule(),
        lr=lr, seed=3, path=path,
    )  # fmt: skip
