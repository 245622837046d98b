"""The fedkeel command as a person uses it, in a place of its own, watched from outside."""

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
PATIENCE = 120.0  # seconds; a run takes 10 to 40 of them, most for Ray's start

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
    """The settings as --set options."""
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
    """What lies in the folders of the runs below `work`."""

    work: Path

    def run_dir(self, name: str) -> Path:
        """Where the run of this name lies."""
        return self.work / "runs" / name

    def records(self, name: str) -> list[RoundRecord]:
        """What the run of this name recorded so far."""
        return read_records(self.run_dir(name))

    def outcome(self, name: str) -> Outcome | None:
        """How the run of this name ended."""
        return read_outcome(self.run_dir(name))

    def weights(self, name: str) -> bytes:
        """The file with the final model of the run of this name."""
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
        """What commands find in their environment."""
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
        """A command under way, which does not outlive the block."""
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
        """A command, to its end."""
        with self.started(*command) as process:
            out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def fedkeel(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`fedkeel` with these arguments, to its end."""
        return self.call(str(BIN / "fedkeel"), *arguments)

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Every live process that was started here, wherever it hangs in the process tree.

        Those only whose name starts with `name`. One that ends while it is looked at is not there.
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
        """The Ray workers in which a client is at work."""
        found = []
        for process in self.processes("ray::ClientAppActor.run"):
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK):
                    found.append(process)
        return found

    def end_all(self) -> None:
        """End what still runs here, such as the server that `flwr run` leaves behind."""
        while processes := self.processes():
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.1)

    def left_over(self) -> list[str]:
        """Temporary files that are not kept for the next run (the caches are)."""
        user = os.getuid()
        kept = {f"fedkeel-{user}", f"fedkeel-fonts-{user}"}
        return sorted(path.name for path in self.temp.iterdir() if path.name not in kept)

    def assert_tidy(self) -> None:
        """Nothing runs, no temporary files are left, and the home is as empty as it was."""
        assert self.processes() == []
        assert self.left_over() == []
        assert list(self.home.iterdir()) == []


@contextmanager
def make_place(folder: Path) -> Iterator[Place]:
    """A Place in this folder; what is left running there is ended."""
    temp = Path(tempfile.mkdtemp(prefix="fkt-", dir="/tmp"))  # short: Ray makes sockets below
    place = Place(folder / "work", folder / "home", temp)
    place.home.mkdir()
    for package in ("common", "client_app", "server_app", "deploy"):
        # Someone else's packages of the same names, in the folder where the command is typed.
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
    """A Place for one test."""
    with make_place(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A Place for all tests of a file."""
    with make_place(tmp_path_factory.mktemp("place")) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """Chromium for all tests of a file; they skip loudly where it is missing."""
    with chromium_started() as browser:
        yield browser
