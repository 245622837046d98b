"""A federation in small: pictures of 4 x 4, a perceptron of 340 weights, on the inline engine."""

import logging
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from client_app.app import app
from common.config import RunConfig, parse
from common.data.dataset import Dataset
from common.data.sources import SOURCES
from common.models import MODELS, Shape
from common.runs.records import RoundRecord, read_records
from deploy.engines.inline import InlineGrid
from server_app.app import run
from server_app.run_dir.run_dir import LOG, logging_to

CLASSES, SIDE, WIDTH = 4, 4, 16
EACH = 4  # pictures of a client: two to train on, two for its test


class Tiny(nn.Module):
    """16 pixels - 16 - 4 classes, with the parts that methods look for."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        pixels = int(np.prod(shape))
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(pixels, WIDTH), nn.ReLU())
        self.classifier = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of images [n, C, H, W]."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


def pictures(count: int, shape: Shape = (1, SIDE, SIDE)) -> Dataset:
    """Draw pictures whose brightness tells the class, more or less."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    grey = rng.integers(0, 128, (count, *shape)) + 32 * labels[:, None, None, None]
    return Dataset(
        name="tiny", images=grey.astype(np.uint8), labels=labels, classes=tuple("abcd"),
        train_size=count * 4 // 5, mean=shape[0] * (0.44,), std=shape[0] * (0.2,), flip=False,
    )  # fmt: skip


def instead_of_digits(data: Dataset) -> None:
    """Let this process alone find these pictures where others find scikit-learn's digits."""
    cast(MutableMapping[str, Any], SOURCES)["digits"] = lambda *_: data


@dataclass(frozen=True)
class Ran:
    """What a run left: the records, and the bytes of each of its files."""

    records: list[RoundRecord]
    bytes: Mapping[str, int]


def tiny_run(method: str, clients: int, cohort: int, rounds: int, **settings: Any) -> Ran:
    """Run a federation in this process alone: its model takes the place of mlp."""
    instead_of_digits(pictures(EACH * clients))
    cast(MutableMapping[str, Any], MODELS)["mlp"] = Tiny
    with tempfile.TemporaryDirectory(prefix="fedkeel-bench-") as out:
        config = parse(
            {
                "method": method, "clients": clients, "participation": cohort / clients,
                "rounds": rounds, "eval-every": 0, "out": out, "name": "run",
                "train.device": "cpu", "server.checkpoint-every": 1,
                **settings,
            }
        )  # fmt: skip
        inline(config)
        folder = Path(out) / "run"
        files = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*")}
        return Ran(read_records(folder), files)


def inline(config: RunConfig) -> None:
    """Run on the inline engine with one worker, in this thread."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    folder = Path(config.out) / config.name
    folder.mkdir(parents=True)
    grid = InlineGrid(app, config.clients, config.to_flat(), 1)
    try:
        with logging_to(folder / LOG, alone=True):
            run(grid, config)
    finally:
        grid.close()
