"""The work that every program of `bench.round` does, and the drawn pictures it is done on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.data.cifar import CIFAR10
from common.rng import stream

CLASSES, SIDE, TILE = 10, 32, 4
RECORDS = 10_000  # of a file
LIKENESS, NOISE = 12.0, 50.0  # grey values; learnt slowly enough for accuracies to tell something


@dataclass(frozen=True)
class Work:
    """FedAvg on pictures in CIFAR-10's binary layout, dealt at random; each program gets this.

    Attributes:
        root: folder that holds `cifar-10-batches-bin`; its 60,000 pictures are one pool.
        rounds: of training; after the last one the model is evaluated on all test pictures.
        seed: of the deal, the cohorts, the batches and the first weights.
        clients: among whom the pool is dealt, as many to each.
        cohort: clients that train in a round, one epoch each.
        train: pictures of a client to train on.
        test: the rest of its pictures.
        batch: pictures of a step.
        lr: learning rate of plain SGD.
    """

    root: str
    rounds: int = 6
    seed: int = 1
    clients: int = 100
    cohort: int = 10
    train: int = 500
    test: int = 100
    batch: int = 50
    lr: float = 0.1


def draw(root: Path, seed: int = 1) -> None:
    """Write random pictures with a pattern a class, as the files of the CIFAR-10 binary archive."""
    edition = CIFAR10.editions[0]
    home = root / edition.folder
    home.mkdir(parents=True)
    tiles = stream(seed, "bench patterns").standard_normal((CLASSES, 3, SIDE // TILE, SIDE // TILE))
    patterns = 128 + LIKENESS * tiles.repeat(TILE, axis=2).repeat(TILE, axis=3)
    flat = patterns.reshape(CLASSES, -1).astype(np.float32)
    for file in edition.train + edition.test:
        rng = stream(seed, "bench pictures", file.name)
        labels = rng.permutation(RECORDS) % CLASSES
        pixels = rng.standard_normal((RECORDS, flat.shape[1]), dtype=np.float32)
        pixels *= NOISE
        pixels += flat[labels]
        rows = np.column_stack([labels, pixels.clip(0, 255)]).astype(np.uint8)
        (home / file.name).write_bytes(rows.tobytes())
