"""Folders for tests: pictures of a folder:PATH data set, and a copy of this repository."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from common.rng import stream

SOURCE = Path(__file__).parents[1]
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


def copy_repository(folder: Path) -> None:
    """Copy this repository without its runs, its virtual environment, and other hidden files."""
    left_out = {"__pycache__", "venv"}

    def ignored(place: str, names: list[str]) -> set[str]:
        hidden = {name for name in names if name.startswith(".")} - {".gitignore"}
        runs = {"runs"} if Path(place) == SOURCE else set()  # but common/runs is a package
        return hidden | runs | left_out & {*names}

    shutil.copytree(SOURCE, folder, ignore=ignored)
