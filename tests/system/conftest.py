"""Run the fedkeel command as a user does, in a place of its own, and observe it from outside."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from common.runs.outcome import Outcome, read_outcome
from common.runs.records import RoundRecord, read_records
from deploy.engines.simulation import MARK
from tests.browser import chromium_started

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BIN = Path(sys.executable).parent
PATIENCE = 360.0  # seconds; a run takes 10 to 40 of them, most for Ray's start

# Small and quick: 8 x 8 pictures of digits.
SMALL: Mapping[str, Any] = {
    "clients": 4,
    "participation": 1.0,
    "rounds": 2,
    "eval-every": 0,
    "data.partition": "iid",
    "server.checkpoint-every": 1,
    "train.device": "cpu",
}


def pairs(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings as --set options."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={_toml(value)}")]


def _toml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | str) else str(value)


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Return the first true value of `what`."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, f"nothing came of {what} in {seconds:g} s"
        time.sleep(0.02)
    return value


class Runs:
    """The files of the runs below `work`."""

    work: Path

    def run_dir(self, name: str) -> Path:
        """Return the run directory of this name."""
        return self.work / "runs" / name

    def records(self, name: str) -> list[RoundRecord]:
        """Return the records of the run of this name so far."""
        return read_records(self.run_dir(name))

    def outcome(self, name: str) -> Outcome | None:
        """Return the outcome of the run of this name; None while it goes on."""
        return read_outcome(self.run_dir(name))

    def weights(self, name: str) -> bytes:
        """Return the bytes of the file with the final model of the run of this name."""
        return (self.run_dir(name) / "weights.npz").read_bytes()


@dataclass(frozen=True)
class Place(Runs):
    """An empty home, a folder for temporary files, and a folder to work in."""

    work: Path
    home: Path
    temp: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of commands."""
        kept = ("FLWR_", "RAY_", "MPL", "FEDKEEL_", "PYTHON")
        plain = {key: value for key, value in os.environ.items() if not key.startswith(kept)}
        return {
            **plain,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(self.home),
            "TMPDIR": str(self.temp),
            **self.extra,
        }

    @contextmanager
    def started(self, *command: str) -> Iterator["subprocess.Popen[str]"]:
        """Start a command, and kill it at the end of the block."""
        with subprocess.Popen(
            command,
            cwd=self.work,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def call(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        with self.started(*command) as process:
            out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def fedkeel(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `fedkeel` with these arguments to its end."""
        return self.call(str(BIN / "fedkeel"), *arguments)

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Return the live processes that were started here and whose name starts with `name`.

        They are found anywhere in the process tree. A process that ends meanwhile is left out.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                here = process.environ().get("TMPDIR") == str(self.temp)
                lives = here and process.status() != psutil.STATUS_ZOMBIE
                if lives and process.name().startswith(name):
                    found.append(process)
        return found

    def training(self) -> list[psutil.Process]:
        """Return the Ray workers in which a client trains."""
        found = []
        for process in self.processes("ray::ClientAppActor.run"):
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK):
                    found.append(process)
        return found

    def end_all(self) -> None:
        """Kill the processes that still run here, as the server that `flwr run` leaves."""
        while processes := self.processes():
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.1)

    def left_over(self) -> list[str]:
        """Return the names of temporary files, except for the caches that the next run uses."""
        user = os.getuid()
        kept = {f"fedkeel-{user}", f"fedkeel-fonts-{user}"}
        return sorted(path.name for path in self.temp.iterdir() if path.name not in kept)

    def assert_tidy(self) -> None:
        """Assert that nothing runs, no temporary file is left, and the home is empty."""
        assert self.processes() == []
        assert self.left_over() == []
        assert list(self.home.iterdir()) == []


@contextmanager
def make_place(folder: Path) -> Iterator[Place]:
    """Make a Place in this folder; at the end kill the processes that are left there."""
    temp = Path(tempfile.mkdtemp(prefix="fkt-", dir="/tmp"))  # short: Ray makes sockets below
    place = Place(folder / "work", folder / "home", temp)
    place.home.mkdir()
    for package in ("common", "client_app", "server_app", "deploy"):
        # Packages of the same names in the working directory, which must not be imported.
        (place.work / package).mkdir(parents=True)
        trap = f'raise ImportError("{package} of the current folder was imported")\n'
        (place.work / package / "__init__.py").write_text(trap)
    try:
        yield place
    finally:
        place.end_all()
        shutil.rmtree(temp, ignore_errors=True)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Make a Place for one test."""
    with make_place(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Make a Place for all tests of a file."""
    with make_place(tmp_path_factory.mktemp("place")) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """Start Chromium for all tests of a file, or skip them where it is missing."""
    with chromium_started() as browser:
        yield browser
