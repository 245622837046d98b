"""Pictures on disk, for runs on a folder:PATH data set."""

from pathlib import Path

import numpy as np
from PIL import Image

from common.rng import stream

CLASSES = ("bright", "dark", "striped")


def write_pictures(folder: Path, *, each: int = 24, side: int = 16) -> Path:
    """Write `each` grey pictures of every class. The cnn takes at least 16 pixels a side."""
    for number, label in enumerate(CLASSES):
        place = folder / "train" / label
        place.mkdir(parents=True)
        rng = stream(0, "pictures", label)
        for index in range(each):
            pixels = rng.integers(0, 100, (side, side), dtype=np.uint8)
            pixels[number :: number + 2] += 100
            Image.fromarray(pixels).save(place / f"{index}.png")
    return folder
