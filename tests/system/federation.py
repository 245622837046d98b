"""A whole federation as processes on loopback: TLS, node keys, the SuperExec secret, a proxy.

    with federation(tmp_path) as fed:          # SuperLink, app process and proxy run
        fed.enroll("alice")                    # makes the key where there is none
        node = fed.start_node("alice", 'data="/abs/pictures"')
        fed.link.flwr("supernode", "ls")       # as the operator, on the private side
        fed.superlink.kill()                   # kill -9
        fed.start_superlink()                  # the same port and database

Every process writes to a log file of its own. The end of the block kills it and its children.
"""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.federation import client_keys, enrollment, pki, server
from deploy.federation.superlink_client import SuperLinkClient
from deploy.system.flower_env import QUIET

BIN = Path(sys.executable).parent
MARK = "FEDKEEL_TEST_FEDERATION"  # in the environment of everything that a federation starts
PATIENCE = 60.0  # seconds; a Flower process is up in 2 to 5 of them


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(
    what: Callable[[], Any], why: Callable[[], str] = str, seconds: float = PATIENCE
) -> Any:
    """Wait for a true value of `what` and return it; `why` is the text of the failure."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain\n{why()}"
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class Process:
    """A started process and its log file."""

    popen: "subprocess.Popen[bytes]"
    log: Path

    @property
    def text(self) -> str:
        """Return its log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self.popen.poll() is None

    def says(self, words: str, seconds: float = PATIENCE) -> None:
        """Wait until its log contains these words."""
        wait_for(lambda: words in self.text, lambda: f"for {words!r} in:\n{self.text}", seconds)

    def ended(self, seconds: float = PATIENCE) -> int:
        """Wait for its end and return its exit code."""
        wait_for(lambda: not self.is_alive(), lambda: f"for its end:\n{self.text}", seconds)
        return self.popen.returncode

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal, wait for its end, and return its exit code."""
        self.popen.send_signal(how)
        return self.ended()

    def kill(self) -> None:
        """Kill -9."""
        self.popen.kill()
        self.popen.wait()


@dataclass
class Federation:
    """The processes of a federation and their addresses."""

    folder: Path
    port: int = field(default_factory=free_port)  # the SuperLink, private
    proxy_port: int = field(default_factory=free_port)  # what clients see
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pki = self.folder / "pki"
        pki.init(self.pki, [])

    @property
    def ca(self) -> Path:
        """Return the path of the CA certificate, which every client gets."""
        return self.pki / "public/ca.crt"

    @property
    def secret(self) -> Path:
        """Return the path of the secret of the SuperLink and its app process."""
        return self.pki / "link/superexec.secret"

    @property
    def address(self) -> str:
        """Return the SuperLink's own address, on the private side."""
        return f"127.0.0.1:{self.port}"

    @property
    def outside(self) -> str:
        """Return the proxy's address."""
        return f"127.0.0.1:{self.proxy_port}"

    @property
    def link(self) -> SuperLinkClient:
        """Return the operator's connection."""
        return SuperLinkClient(self.address, self.ca)

    @property
    def work(self) -> Path:
        """Return the working directory of the app process, which writes runs below it."""
        return self.folder / "work"

    def env(self, name: str) -> dict[str, str]:
        """Return the environment of the process of this name."""
        kept = ("FLWR_", "RAY_", "FEDKEEL_", "PYTHON")
        plain = {key: value for key, value in os.environ.items() if not key.startswith(kept)}
        return {
            **plain,
            **QUIET,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
            "FLWR_HOME": str(self.folder / "flwr" / name),
            MARK: str(self.folder),
        }

    def start(
        self, name: str, *command: str | Path, extra: Mapping[str, str] | None = None
    ) -> Process:
        """Start a command that logs to `logs/NAME.log`; another start appends to this file."""
        log = self.folder / "logs" / f"{name}.log"
        for folder in (log.parent, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            popen = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.work,
                env={**self.env(name), **(extra or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process(popen, log)
        self.processes.append(process)
        return process

    def commands(self, *, proxy: bool = False) -> dict[str, list[str]]:
        """Return the product's own commands for superlink, app process and proxy."""
        fleet = self.outside if proxy else ""
        place = server.ServerOptions(self.pki, self.folder, self.work, self.port, fleet)
        for folder in (self.work, self.folder / "logs", self.folder / "nginx"):
            folder.mkdir(parents=True, exist_ok=True)
        return server.commands(place, self.folder / "nginx")

    def start_superlink(self, *more: str) -> Process:
        """Start the SuperLink, with its database, and wait until it answers."""
        self.superlink = self.start("superlink", *self.commands()["superlink"], *more)
        self.answers(self.port, self.superlink)
        return self.superlink

    def start_executor(self, *more: str) -> Process:
        """Start the process that runs server apps."""
        self.executor = self.start("superexec", *self.commands()["app process"], *more)
        return self.executor

    def start_proxy(self) -> Process:
        """Start nginx with the product's own configuration and wait until it answers."""
        if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            pytest.skip("NGINX IS NOT INSTALLED (apt-get install nginx-light)")
        self.proxy = self.start("nginx", *self.commands(proxy=True)["proxy"])
        self.answers(self.proxy_port, self.proxy)
        return self.proxy

    def start_node(
        self,
        name: str,
        config: str = "partition-id=0 num-partitions=1",
        *more: str,
        key: Path | None = None,
        superlink: str = "",
        label: str = "",
    ) -> Process:
        """Start a client's flower-supernode.

        Args:
            name: the client whose key it uses.
            config: its --node-config.
            more: further arguments.
            key: a key file instead of `keys/NAME`.
            superlink: HOST:PORT instead of the proxy's.
            label: the name of its log instead of `node-NAME`.
        """
        return self.start(
            label or f"node-{name}",
            *(BIN / "flower-supernode", "--superlink", superlink or self.outside),
            *("--root-certificates", self.ca),
            *("--auth-supernode-private-key", key or self.key(name)),
            *("--port", str(free_port()), "--node-config", config),
            *more,
        )

    def key(self, name: str) -> Path:
        """Return the private key of the client of this name; make it if it is missing."""
        path = self.folder / "keys" / name
        client_keys.make_key(path)
        return path

    def enroll(self, name: str) -> None:
        """Register the key of a client under its name; make it if it is missing."""
        enrollment.enroll(
            self.link, name, client_keys.read_public(client_keys.public_line(self.key(name)))
        )

    def status(self, name: str) -> str:
        """Return the SuperLink's status of a client: online, offline, registered or ""."""
        return next(
            (one.status for one in enrollment.enrolled_clients(self.link) if one.name == name), ""
        )

    def wait_online(self, name: str, seconds: float = PATIENCE) -> None:
        """Wait until the client of this name is connected."""
        log = self.folder / "logs" / f"node-{name}.log"
        wait_for(lambda: self.status(name) == "online", log.read_text, seconds)

    def answers(self, port: int, process: Process) -> None:
        """Wait until a server on this port answers over TLS that it is healthy."""
        context = ssl.create_default_context(cafile=str(self.ca))

        def healthy() -> bool:
            assert process.is_alive(), process.text
            with suppress(OSError):
                plain = socket.create_connection(("127.0.0.1", port), timeout=5)
                with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as channel:
                    channel.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                    return b" 200 " in channel.recv(64)
            return False

        wait_for(healthy, lambda: process.text)

    def living(self) -> list[psutil.Process]:
        """Return every live process that was started here, anywhere in the process tree."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                ours = process.environ().get(MARK) == str(self.folder)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end_all(self) -> None:
        """Kill every process by its pid, also those that were started meanwhile."""
        for started in self.processes:  # nginx overwrites its environment: `living` misses it
            with suppress(ProcessLookupError):
                os.killpg(started.popen.pid, signal.SIGKILL)
        while alive := self.living():
            for process in alive:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.05)
        for started in self.processes:
            started.popen.wait()


@contextmanager
def federation(folder: Path, *, executor: bool = True, proxy: bool = True) -> Iterator[Federation]:
    """Start a federation without clients in this folder; kill all of it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Federation(folder)
    try:
        made.start_superlink()
        if executor:
            made.start_executor()
        if proxy:
            made.start_proxy()
        yield made
    finally:
        made.end_all()
