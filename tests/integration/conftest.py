"""Whole runs in this process: the real server and clients on the inline engine."""

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.config import parse
from common.runs.outcome import Outcome
from common.runs.records import RoundRecord, read_records
from deploy.engines import ENGINES, Resources
from deploy.engines.runner import run_experiment
from server_app.run_dir.run_dir import LOG, WEIGHTS
from tests.folders import write_pictures

SMALL: Mapping[str, Any] = {
    "clients": 6,
    "participation": 0.5,
    "rounds": 3,
    "eval-every": 0,
    "data.partition": "iid",
    "server.checkpoint-every": 1,
    "train.device": "cpu",
}


@dataclass(frozen=True)
class Ran:
    """A run that is over."""

    folder: Path
    outcome: Outcome
    records: list[RoundRecord]
    weights: str  # fingerprint of weights.npz, "" for none
    screen: str  # what a person saw

    @property
    def log(self) -> str:
        return (self.folder / LOG).read_text()


Runner = Callable[..., Ran]


def fingerprint(folder: Path) -> str:
    """The bits of a run's model, short enough to read when two differ; "" without one."""
    path = folder / WEIGHTS
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


@pytest.fixture
def carried_out(tmp_path: Path) -> Runner:
    """Carry out a run of this name with these settings, given over SMALL."""

    def go(name: str, settings: Mapping[str, Any] | None = None, *, workers: int = 1) -> Ran:
        flat = {**SMALL, "out": str(tmp_path / "runs"), "name": name, **(settings or {})}
        config, screen = parse(flat), io.StringIO()
        console = Console(file=screen, width=200)
        outcome = run_experiment(
            config, ENGINES["inline"], Resources(workers), console, config.method
        )
        folder = tmp_path / "runs" / name
        return Ran(folder, outcome, read_records(folder), fingerprint(folder), screen.getvalue())

    return go


@pytest.fixture(scope="session")
def folder_of_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of three classes."""
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def with_dropout(folder_of_pictures: Path) -> dict[str, Any]:
    """Settings of a model with dropout on those pictures."""
    return {
        "model": "cnn",
        "data.name": f"folder:{folder_of_pictures}",
        "train.batch-size": 4,
        "train.lr": 0.05,
    }
