"""Drawn pictures in CIFAR-10's binary layout, so that anybody can repeat a measurement."""

from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np

from common.data.sources.cifar import CIFAR10, PIXELS
from common.rng import stream

CLASSES, SIDE, TILE = 10, 32, 4
RECORDS = 10_000  # of a file
PATTERN, NOISE = 25.0, 50.0  # standard deviations, in grey values
NEEDED = f"expected CIFAR-10's binary archive, unpacked: {CIFAR10.editions[0].folder}/*.bin"
MISLABELLED = 0.2  # so that a model that has learnt the patterns is right for 82 % and no more


def found(text: str) -> Path:
    """Return the folder whose `cifar-10-batches-bin` holds all files of the binary archive.

    Raises:
        ArgumentTypeError: one is missing or of another size.
    """
    root, edition = Path(text).absolute(), CIFAR10.editions[0]
    size = RECORDS * (1 + PIXELS)
    for file in edition.train + edition.test:
        path = root / edition.folder / file.name
        if not path.is_file():
            raise ArgumentTypeError(f"there is no file {path}; {NEEDED}")
        if path.stat().st_size != size:
            raise ArgumentTypeError(f"{path} has not {size:,} bytes; {NEEDED}")
    return root


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
