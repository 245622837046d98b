"""A resumed run has the data with which it was started, and repeated images are counted."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from client_app.app import app
from common.config import parse
from common.errors import DataError
from common.federated_data import dataset_of, splits_of
from common.rng import stream
from common.runs.class_counts import read_class_counts
from common.runs.outcome import read_outcome
from deploy.engines.inline import InlineGrid
from server_app.app import run

SETTINGS = {
    "method": "fedavg",
    "clients": 3,
    "participation": 1.0,
    "data.partition": "iid",
    "data.image-size": 8,
    "train.device": "cpu",
    "server.checkpoint-every": 1,
}


def noise(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = stream(number, "noise").integers(0, 256, (8, 8, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(24):
        noise(tmp_path / "data" / "abc"[number % 3] / f"{number}.png", number)
    return tmp_path / "data"


def carry_out(folder: Path, out: Path, **more: Any) -> None:
    dataset_of.cache_clear()
    splits_of.cache_clear()
    own = {"data.name": f"folder:{folder}", "out": str(out), "name": "run"}
    config = parse({**SETTINGS, **own, **{key.replace("_", "-"): v for key, v in more.items()}})
    grid = InlineGrid(app, config.clients, config.to_flat(), workers=1)
    try:
        run(grid, config)
    finally:
        grid.close()


def added(folder: Path) -> None:
    noise(folder / "a" / "new.png", 99)


def removed(folder: Path) -> None:
    (folder / "a" / "0.png").unlink()


def changed(folder: Path) -> None:
    noise(folder / "a" / "0.png", 98)


def moved(folder: Path) -> None:
    (folder / "a" / "0.png").rename(folder / "b" / "0.png")


@pytest.mark.parametrize("change", [added, removed, changed, moved])
def test_a_resume_with_changed_data_is_refused(folder: Path, tmp_path: Path, change: Any) -> None:
    """Everything was dealt anew: https://github.com/aiqm/torchani/issues/443 is a like report."""
    carry_out(folder, tmp_path / "out", rounds=2)
    before = (tmp_path / "out/run/records.jsonl").read_bytes()
    change(folder)
    with pytest.raises(DataError, match=r"the data of this run have changed: .* with 24"):
        carry_out(folder, tmp_path / "out", rounds=3, resume=True)
    assert (tmp_path / "out/run/records.jsonl").read_bytes() == before


def test_a_resume_with_the_same_images_under_other_times_and_places_goes_on(
    folder: Path, tmp_path: Path
) -> None:
    carry_out(folder, tmp_path / "out", rounds=2)
    for path in folder.rglob("*.png"):
        path.touch()
    carry_out(folder, tmp_path / "out", rounds=3, resume=True)
    outcome = read_outcome(tmp_path / "out/run")
    assert outcome is not None
    assert outcome.rounds == 3


def test_repeated_images_are_counted_and_said(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    noise(folder / "b" / "copy.png", 0)  # the image a/0.png under another class
    noise(folder / "a" / "copy.png", 3)  # a/3.png again
    with caplog.at_level(logging.INFO):
        carry_out(folder, tmp_path / "out", rounds=1)
    counts = read_class_counts(tmp_path / "out/run")
    assert counts is not None
    assert counts.data is not None
    assert (counts.data.samples, counts.data.repeated, counts.data.two_classes) == (26, 2, 1)
    assert "2 images are repetitions" in caplog.text
    assert "data: folder:" in caplog.text
