"""A federation whose machines are network namespaces with addresses, names and loopback.

    with networked(tmp_path) as net:          # the server
        net.enroll("0", "1", "2")
        net.join("0", "1", "2")
        net.cut_off("2")
        net.plug_in("2")

All machines are connected to a bridge in a namespace of its own, so that no firewall of this
machine interferes. The clients' lines delay packets and lose some, by the kernel's netem. Without
netem a thread carries the packets between two taps.
"""

import fcntl
import heapq
import json
import os
import random
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from select import select
from typing import Any

import psutil

from tests.system.conftest import BIN
from tests.system.federation import Process, wait_for
from tests.system.fleet import CLIENT, Done, Fleet

DELAY, LOSS = 0.02, 0.01  # of a packet each way: seconds, and the share that is lost
NAME, OTHER_NAME = "fl.example.org", "other.example.org"  # the certificate is for the first
ADDRESS, PORT, DOOR = "10.87.0.1", 8000, 8443  # of the server
PREFIX = "fkt"  # and the pid of whoever made it: the names of namespaces
HOSTS = Path("/etc/netns")  # `ip netns exec` mounts what is there over /etc
TUNSETIFF, TAP = 0x400454CA, 0x0002 | 0x1000  # linux/if_tun.h: a tap without a header
FRAME_BYTES = 2048


def ip(*words: str) -> str:
    """Run iproute2's `ip` and return its output."""
    return said("ip", *words)


def said(*command: str) -> str:
    """Run a command, assert that it succeeds, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def why_not() -> str:
    """Return why such a federation cannot run here, "" if it can."""
    if os.geteuid() != 0:
        return "NOT ROOT: NETWORK NAMESPACES CANNOT BE MADE"
    for program, package in {"ip": "iproute2", "tc": "iproute2", "nginx": "nginx-light"}.items():
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            return f"{program} IS NOT INSTALLED (apt-get install {package})"
    try:
        with Network() as network:
            network.add("probe", "10.87.0.9")
            said(*network.inside("probe"), "true")
    except (AssertionError, OSError) as error:
        return f"THIS MACHINE MAKES NO NETWORK NAMESPACES: {error}"
    return ""


class Carrier(threading.Thread):
    """Carry packets between pairs of taps with a delay, and lose some."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lost = 0
        self._other: dict[int, int] = {}
        self._over = threading.Event()

    def between(self, first: str, second: str) -> None:
        """Make two taps of these names and connect them."""
        ends = [_tap(first), _tap(second)]
        self._other = {**self._other, **dict(zip(ends, reversed(ends), strict=True))}

    def run(self) -> None:
        chance, order = random.Random(1), count()
        under_way: list[tuple[float, int, int, bytes]] = []
        while not self._over.is_set():
            until = under_way[0][0] - time.monotonic() if under_way else 0.05
            for end in select([*self._other], [], [], max(until, 0.0))[0]:
                with suppress(OSError):  # it is down
                    frame = os.read(end, FRAME_BYTES)
                    due = time.monotonic() + DELAY
                    if chance.random() < LOSS:
                        self.lost += 1
                    else:
                        heapq.heappush(under_way, (due, next(order), self._other[end], frame))
            while under_way and under_way[0][0] <= time.monotonic():
                *_, end, frame = heapq.heappop(under_way)
                with suppress(OSError):
                    os.write(end, frame)

    def end(self) -> None:
        """Stop and close the taps, which removes them."""
        self._over.set()
        if self.ident is not None:
            self.join()
        for end in self._other:
            os.close(end)


def _tap(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP))
    return end


class Network:
    """Machines on a bridge, which are removed at the end of the block."""

    def __init__(self) -> None:
        self._mine = f"{PREFIX}{os.getpid()}-"
        self._carrier = Carrier()
        self.has_netem = False

    def __enter__(self) -> "Network":
        for name in _leftovers():
            _remove(name)
        try:
            self._make("switch")
            ip("-n", self._space("switch"), "link", "add", "bridge", "type", "bridge")
            ip("-n", self._space("switch"), "link", "set", "bridge", "up")
            self.has_netem = self._try_netem()
            self._carrier.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._carrier.end()
        for name in [one for one in _spaces() if one.startswith(self._mine)]:
            _remove(name)

    def inside(self, machine: str) -> tuple[str, ...]:
        """Return the words before a command that make it run on this machine."""
        return "ip", "netns", "exec", self._space(machine)

    def add(self, machine: str, address: str, *, is_far: bool = False) -> None:
        """Add a machine; the line of a far one delays packets and loses some."""
        self._make(machine)
        space, switch, port = self._space(machine), self._space("switch"), f"to-{machine}"
        if is_far and not self.has_netem:
            names = f"fk{os.getpid()}a{machine}", f"fk{os.getpid()}b{machine}"
            self._carrier.between(*names)
            ip("link", "set", names[0], "netns", space, "name", "eth0")
            ip("link", "set", names[1], "netns", switch, "name", port)
        else:
            peer = ("type", "veth", "peer", "name", port, "netns", switch)
            ip("link", "add", "eth0", "netns", space, *peer)
        if is_far and self.has_netem:
            self._netem(space, "eth0")
            self._netem(switch, port)
        ip("-n", switch, "link", "set", port, "master", "bridge", "up")
        for link in ("lo", "eth0"):
            ip("-n", space, "link", "set", link, "up")
        ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")

    def plug(self, machine: str, *, is_in: bool) -> None:
        """Disconnect the line of a machine at the switch, or connect it again."""
        state = "up" if is_in else "down"
        ip("-n", self._space("switch"), "link", "set", f"to-{machine}", state)

    def lost(self) -> int:
        """Return how many packets the lines have lost so far."""
        if not self.has_netem:
            return self._carrier.lost
        lines = json.loads(said("tc", "-n", self._space("switch"), "-s", "-j", "qdisc", "show"))
        return sum(line["drops"] for line in lines if line["kind"] == "netem")

    def _space(self, machine: str) -> str:
        return f"{self._mine}{machine}"

    def _make(self, machine: str) -> None:
        name = self._space(machine)
        (HOSTS / name).mkdir(parents=True, exist_ok=True)
        own = f"127.0.0.1 localhost\n{ADDRESS} {NAME} {OTHER_NAME}\n"
        (HOSTS / name / "hosts").write_text(own, encoding="utf-8")
        ip("netns", "add", name)

    def _try_netem(self) -> bool:
        with suppress(AssertionError):
            self._netem(self._space("switch"), "bridge")
            said("tc", "-n", self._space("switch"), "qdisc", "del", "dev", "bridge", "root")
            return True
        return False

    @staticmethod
    def _netem(space: str, link: str) -> None:
        how = ("netem", "delay", f"{1000 * DELAY:g}ms", "loss", f"{100 * LOSS:g}%")
        said("tc", "-n", space, "qdisc", "add", "dev", link, "root", *how)


def _spaces() -> list[str]:
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]


def _leftovers() -> Iterator[str]:
    """Yield namespaces, or their hosts files, of test runs that were killed."""
    made = [path.name for path in HOSTS.glob(f"{PREFIX}*")] if HOSTS.is_dir() else []
    for name in {*_spaces(), *made}:
        pid, dash, _ = name.removeprefix(PREFIX).partition("-")
        is_ours = name.startswith(PREFIX) and bool(dash) and pid.isdecimal()
        if is_ours and not psutil.pid_exists(int(pid)):
            yield name


def _remove(name: str) -> None:
    with suppress(AssertionError):
        for pid in ip("netns", "pids", name).split():
            with suppress(psutil.Error):
                psutil.Process(int(pid)).kill()
        ip("netns", "del", name)
    shutil.rmtree(HOSTS / name, ignore_errors=True)
    with suppress(OSError):
        HOSTS.rmdir()  # it was not there before


@dataclass
class Networked(Fleet):
    """A Fleet in which every client and the server has its own machine."""

    port: int = PORT
    door: int = DOOR
    network: Network = field(default_factory=Network)

    def start(
        self, name: str, *command: str | Path, extra: Mapping[str, str] | None = None
    ) -> Process:
        """Start a command on its client's machine, or on the server's."""
        machine = (extra or {}).get(CLIENT, "server")
        return super().start(name, *self.network.inside(machine), *command, extra=extra)

    def call(self, *command: str | Path, extra: Mapping[str, str] | None = None) -> Done:
        """Run a command to its end, on its client's machine or on the server's."""
        machine = (extra or {}).get(CLIENT, "server")
        return super().call(*self.network.inside(machine), *command, extra=extra)

    def start_server(self) -> None:
        """Add all machines, make the keys, start the server and wait until it is up."""
        self.network.add("server", ADDRESS)
        for number in range(self.size):
            self.network.add(str(number), f"10.87.0.{10 + number}", is_far=True)
        hosts = ("--host", ADDRESS, "--host", NAME)
        self.succeed("pki", "init", "--dir", "../pki", *hosts)
        self.server = self.start(
            "server",
            *(BIN / "fedkeel", "server", "--pki", "../pki", "--state", "../state"),
            *("--port", str(PORT), "--fleet", f"{ADDRESS}:{DOOR}"),
        )
        for place in (("127.0.0.1", PORT), (ADDRESS, DOOR)):
            wait_for(partial(self.connects, "server", *place), lambda: self.tails)

    def start_join(self, name: str, *more: str | Path, **options: Any) -> Process:
        """Start `fedkeel join` on this client's machine, by the server's name."""
        return super().start_join(name, "--superlink", f"{NAME}:{DOOR}", *more, **options)

    def connects(self, machine: str, host: str, port: int) -> float | None:
        """Return the seconds that a machine takes to connect to a port, or None if it cannot."""
        ask = (
            "import socket, sys, time; begin = time.monotonic(); "
            "socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close(); "
            "print(time.monotonic() - begin)"
        )
        done = self.call("python", "-c", ask, host, str(port), extra={CLIENT: machine})
        return float(done.out) if done.code == 0 else None

    def cut_off(self, client: str) -> None:
        """Disconnect a client's line."""
        self.network.plug(client, is_in=False)

    def plug_in(self, client: str) -> None:
        """Connect a client's line again."""
        self.network.plug(client, is_in=True)


@contextmanager
def networked(folder: Path, size: int = 3) -> Iterator[Networked]:
    """Start a server and machines for clients; end and remove all of them with the block."""
    with Network() as network:
        made = Networked(folder, size, network=network)
        try:
            made.start_server()
            yield made
        finally:
            made.end()
