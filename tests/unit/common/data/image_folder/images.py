"""Folders of small pictures, good and bad."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, shade: int = 0, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade, shade)).convert(mode).save(path)


def pets(root: Path, train: int = 3, test: int = 2) -> Path:
    for index, name in enumerate(("cat", "dog")):
        for number in range(train):
            picture(root / "train" / name / f"{number}.png", 100 * index + number)
        for number in range(test):
            picture(root / "test" / name / f"{number}.png", 50 + 100 * index + number)
    return root


def spoil(folder: Path) -> set[str]:
    """Add one bad file of each kind; returns their names."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8)
    Image.fromarray(noise).save(folder / "cut.png")
    whole = (folder / "cut.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("not a picture")
    (folder / "._x.png").write_bytes(b"\x00\x05\x16\x07" + bytes(40))
    (folder / "gone.png").symlink_to("nowhere.png")
    Image.new("1", (9000, 9000)).save(folder / "large.png")
    Image.new("1", (20000, 20000)).save(folder / "bomb.png")
    Image.fromarray(np.full((5, 6), -1, np.int32)).save(folder / "negative.tif")
    bad = {"cut.png", "empty.jpg", "text.jpg", "gone.png", "large.png", "bomb.png"}
    if os.getuid():  # root may read everything
        picture(folder / "secret.png")
        (folder / "secret.png").chmod(0)
        bad.add("secret.png")
    return bad | {"negative.tif"}


@contextmanager
def pipe(path: Path, seconds: float = 5.0) -> Iterator[None]:
    """A pipe that nobody writes to, until a reader has waited for so long."""
    os.mkfifo(path)
    timer = threading.Timer(seconds, lambda: os.close(os.open(path, os.O_RDWR)))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
