"""Drawn pictures in CIFAR-10's binary layout, so that anybody can repeat a measurement."""

from pathlib import Path

import numpy as np

from common.data.cifar import CIFAR10
from common.rng import stream

CLASSES, SIDE, TILE = 10, 32, 4
RECORDS = 10_000  # of a file
PATTERN, NOISE = 25.0, 50.0  # standard deviations, in grey values
MISLABELLED = 0.2  # so that a model that has learnt the patterns is right for 82 % and no more


def draw(root: Path, seed: int = 1) -> None:
    """Write random pictures with a pattern a class, as the files of the CIFAR-10 binary archive."""
    edition = CIFAR10.editions[0]
    home = root / edition.folder
    home.mkdir(parents=True)
    tiles = stream(seed, "bench patterns").standard_normal((CLASSES, 3, SIDE // TILE, SIDE // TILE))
    patterns = 128 + PATTERN * tiles.repeat(TILE, axis=2).repeat(TILE, axis=3)
    flat = patterns.reshape(CLASSES, -1).astype(np.float32)
    for file in edition.train + edition.test:
        rng = stream(seed, "bench pictures", file.name)
        labels = rng.permutation(RECORDS) % CLASSES
        pixels = rng.standard_normal((RECORDS, flat.shape[1]), dtype=np.float32)
        pixels *= NOISE
        pixels += flat[labels]
        labels[: int(MISLABELLED * RECORDS)] = rng.integers(0, CLASSES, int(MISLABELLED * RECORDS))
        rows = np.column_stack([labels, pixels.clip(0, 255)]).astype(np.uint8)
        (home / file.name).write_bytes(rows.tobytes())
