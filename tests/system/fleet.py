"""A federation run by fedkeel commands only, on free ports of loopback.

    with fleet(tmp_path) as made:                # pki init, server: SuperLink, app process, proxy
        made.enroll("0", "1", "2")               # key, enroll
        made.join("0", "1", "2")                 # join --partition K/3, and connected
        done = made.run("fedpvr", "first", {"rounds": 3})
        made.find("flower-supernode", "1").kill()

Every process has a mark in its environment, by which it is found and ended.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.runs.live_state import LiveState, read_live_state
from common.runs.records import RoundRecord
from deploy.system.processes import is_alive
from tests.system.conftest import BIN, Runs, pairs
from tests.system.federation import Process, free_port, wait_for

MARK = "FEDKEEL_TEST_FLEET"  # in the environment of everything that is started
CLIENT = "FEDKEEL_TEST_CLIENT"  # in that of a client's processes: its name
PATIENCE = 480.0  # seconds; on a quiet machine nothing takes a sixth of it
CONNECTED = "connected: ready for orders"
PHASES = ["waiting for clients", "training", "evaluating", "calibrating"]
TAIL = 1500  # characters of each log in a failure's text
SMALL: Mapping[str, Any] = {  # digits, which need no files
    "clients": 3,
    "participation": 1.0,
    "rounds": 3,
    "eval-every": 0,
    "data.partition": "iid",
    "train.device": "cpu",
    "server.checkpoint-every": 1,
}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass
class Fleet(Runs):
    """The processes of a federation, their ports, and its commands."""

    folder: Path
    size: int = 3
    port: int = field(default_factory=free_port)  # the SuperLink, private
    door: int = field(default_factory=free_port)  # the proxy, which clients see
    started: list[Process] = field(default_factory=list)
    hosts: Sequence[str] = ()  # further names of the server, for its certificate

    # ------------------------------------------------------------ commands

    @property
    def work(self) -> Path:
        """Return the working directory of commands, in which runs are written."""
        return self.folder / "work"

    @property
    def ca(self) -> Path:
        """Return the path of the CA certificate, which every client gets."""
        return self.folder / "pki/public/ca.crt"

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a command."""
        kept = ("FLWR_", "RAY_", "MPL", "FEDKEEL_", "PYTHON")
        plain = {key: value for key, value in os.environ.items() if not key.startswith(kept)}
        return {
            **plain,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "FEDKEEL_SUPERLINK": f"127.0.0.1:{self.port}",
            "FEDKEEL_CA": str(self.ca),
            MARK: str(self.folder),
            **(extra or {}),
        }

    def start(
        self, name: str, *command: str | Path, extra: Mapping[str, str] | None = None
    ) -> Process:
        """Start a command that logs to `logs/NAME.log`; another start appends to this file."""
        log = self.folder / "logs" / f"{name}.log"
        with log.open("ab") as out:
            popen = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.work,
                env=self.env(extra),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process(popen, log)
        self.started.append(process)
        return process

    def call(self, *command: str | Path, extra: Mapping[str, str] | None = None) -> Done:
        """Run a command to its end."""
        parts = [str(part) for part in command]
        done = subprocess.run(
            parts,
            cwd=self.work,
            env=self.env(extra),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def fedkeel(self, *arguments: str | Path) -> Done:
        """Run `fedkeel` with these arguments, to its end."""
        return self.call(BIN / "fedkeel", *arguments)

    def succeed(self, *arguments: str | Path) -> str:
        """Run `fedkeel` with these arguments, assert that it succeeds, and return its output."""
        done = self.fedkeel(*arguments)
        assert done.code == 0, f"fedkeel {arguments}: {done.code}\n{done.out}{done.err}{self.tails}"
        return done.out

    # ------------------------------------------------------------ people

    def start_server(self) -> None:
        """Make the keys, start the server, and wait until it listens on both ports."""
        hosts = [word for host in self.hosts for word in ("--host", host)]
        self.succeed("pki", "init", "--dir", "../pki", *hosts)
        self.server = self.start(
            "server",
            *(BIN / "fedkeel", "server", "--pki", "../pki", "--state", "../state"),
            *("--port", str(self.port), "--fleet", f"127.0.0.1:{self.door}"),
        )
        wait_for(lambda: all(map(listens, (self.port, self.door))), lambda: self.tails)

    def enroll(self, *names: str) -> None:
        """Make each client's key as its owner does, and enroll its public half."""

        def enroll(name: str) -> None:
            public = self.succeed("key", name, "--dir", "../keys")
            (self.folder / "keys" / f"{name}.public").write_text(public)
            self.succeed("enroll", name, "--key", f"../keys/{name}.public")

        with ThreadPoolExecutor() as pool:
            list(pool.map(enroll, names))

    def start_join(
        self,
        name: str,
        *more: str | Path,
        key: Path | None = None,
        part: str = "",
        label: str = "",
        extra: Mapping[str, str] | None = None,
    ) -> Process:
        """Start `fedkeel join` for this client, whose name is the number of its data partition."""
        return self.start(
            f"join-{label or name}-{len(self.started)}",
            *(BIN / "fedkeel", "join", "--superlink", f"127.0.0.1:{self.door}"),
            *("--ca", self.ca, "--name", name, "--key", key or self.folder / "keys" / name),
            *("--partition", part or f"{name}/{self.size}", *more),
            extra={CLIENT: label or name, **(extra or {})},
        )

    def join(self, *names: str, part: str = "", extra: Mapping[str, str] | None = None) -> None:
        """Let clients join at the same time, and wait until all of them are connected."""
        self.joined |= {name: self.start_join(name, part=part, extra=extra) for name in names}
        for name in names:
            self.connected(name)

    def connected(self, name: str, times: int = 1) -> None:
        """Wait until this client has connected so many times in one `join`."""
        process = self.joined[name]

        def has() -> bool:
            assert process.is_alive(), f"join of {name} has ended:\n{process.text}{self.tails}"
            return process.text.count(CONNECTED) >= times

        wait_for(has, lambda: f"for client {name}\n{self.tails}", PATIENCE)

    def __post_init__(self) -> None:
        self.joined: dict[str, Process] = {}
        for name in ("work", "home", "tmp", "keys", "logs"):
            (self.folder / name).mkdir(parents=True)

    # ------------------------------------------------------------ runs

    def arguments(self, method: str, name: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the arguments of `fedkeel` for a run on the nodes."""
        given = pairs({**SMALL, "clients": self.size, **settings})
        return ("run", method, "--engine", "superlink", "--name", name, *given)

    def start_run(self, method: str, name: str, settings: Mapping[str, Any], *more: str) -> Process:
        """Start a run on the nodes."""
        arguments = self.arguments(method, name, settings)
        return self.start(f"run-{name}", BIN / "fedkeel", *arguments, *more)

    def run(self, method: str, name: str, settings: Mapping[str, Any], *more: str) -> str:
        """Run on the nodes, assert that it succeeds, and return the output."""
        return self.succeed(*self.arguments(method, name, settings), *more)

    def reference(self, method: str, name: str, settings: Mapping[str, Any], engine: str) -> bytes:
        """Do the same run on another engine and return the bytes of the final model's file."""
        given = pairs({**SMALL, "clients": self.size, **settings})
        self.succeed("run", method, "--engine", engine, "--name", name, *given)
        return self.weights(name)

    def live(self, name: str) -> LiveState | None:
        """Return the live state of the run of this name."""
        return read_live_state(self.run_dir(name))

    def reaches(
        self,
        name: str,
        round: int,  # noqa: A002
        phase: str = "training",
        since: float = 0.0,
    ) -> LiveState:
        """Wait until the run of this name has reached this phase of this round.

        Live states from before `since` (seconds since 1970) do not count.
        """

        def there() -> LiveState | None:
            ended = self.outcome(name)
            assert ended is None, f"{name} has ended before: {ended}{self.tails}"
            live = self.live(name)
            if live is None or live.updated <= since:
                return None
            here, wanted = (live.round, PHASES.index(live.phase)), (round, PHASES.index(phase))
            return live if here >= wanted else None

        live: LiveState = wait_for(there, lambda: f"{self.live(name)}\n{self.tails}", PATIENCE)
        return live

    def done(self, name: str, round: int) -> RoundRecord:  # noqa: A002
        """Wait for the record of this round and return it."""

        def there() -> list[RoundRecord]:
            return [record for record in self.records(name) if record.round == round]

        found: list[RoundRecord] = wait_for(
            lambda: there() or (self.outcome(name) and there()),
            lambda: f"{self.live(name)}\n{self.tails}",
            PATIENCE,
        )
        return found[0]

    # ------------------------------------------------------------ processes

    def living(self) -> list[psutil.Process]:
        """Return every live process that was started here, anywhere in the process tree."""
        return [process for process, _ in self._marked()]

    def all(self, program: str, client: str = "") -> list[psutil.Process]:
        """Return the live processes that run this program, of this client if one is named."""
        found = []
        for process, env in self._marked():
            with suppress(psutil.Error):
                words = [Path(word).name for word in process.cmdline()[:2]]
                if program in words and env.get(CLIENT, "") == client:
                    found.append(process)
        return found

    def find(self, program: str, client: str = "", since: float = 0.0) -> psutil.Process:
        """Wait for a process that runs this program, started after `since`, and return it."""
        found: list[psutil.Process] = wait_for(
            lambda: [p for p in self.all(program, client) if _began(p) > since],
            lambda: f"for {program} of {client or 'the server'}\n{self.tails}",
            PATIENCE,
        )
        return found[0]

    def _marked(self) -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                env = process.environ()
                if env.get(MARK) == str(self.folder) and is_alive(process):
                    yield process, env

    @property
    def tails(self) -> str:
        """Return the ends of all logs, for a failure's text."""
        logs = [*self.folder.glob("logs/*.log"), *self.folder.glob("state/logs/*.log")]
        logs += [*self.work.glob("runs/*/engine.log"), *self.folder.glob("keys/*.node/node.log")]
        texts = (f"\n==== {log}\n{_end(log)}" for log in sorted(logs))
        return "".join(texts)

    def family(self) -> set[psutil.Process]:
        """Return the live processes, with children that overwrite their environment (nginx)."""
        found = {*self.living()}
        for process in list(found):
            with suppress(psutil.Error):
                found |= {*process.children(recursive=True)}
        return found

    def end(self) -> None:
        """Terminate every process; kill those that do not end within ten seconds."""
        known = self.family()
        for process in known:
            with suppress(psutil.Error):
                process.resume()
        for started in reversed(self.started):
            if started.is_alive():
                started.popen.terminate()
        for started in self.started:
            with suppress(subprocess.TimeoutExpired):
                started.popen.wait(10)
        while known := {one for one in {*known, *self.living()} if is_alive(one)}:
            for process in known:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.05)


def need_nginx() -> None:
    """Skip the test if nginx is missing."""
    if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        pytest.skip("NGINX IS NOT INSTALLED (apt-get install nginx-light)")


def listens(port: int) -> bool:
    """Return whether a process listens on this port of loopback."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _began(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.create_time())
    return 0.0


def _end(log: Path) -> str:
    with suppress(OSError):
        return log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    return ""


@contextmanager
def fleet(folder: Path, size: int = 3, hosts: Sequence[str] = ()) -> Iterator[Fleet]:
    """Start a federation without clients in this folder; end all of it with the block."""
    made = Fleet(folder, size, hosts=hosts)
    try:
        made.start_server()
        yield made
    finally:
        made.end()
