"""Faults of certificates, clocks, keys and disks, and the messages about them.

Client "2" has the faults; "0" and "1" are connected all the time. For kills, cut lines and late
replies see test_real_nodes, test_rounds_on_nodes and test_namespaces.
"""

import http.server
import os
import re
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.federation import pki, server
from tests.system.conftest import BIN
from tests.system.federation import Process, free_port, wait_for
from tests.system.fleet import CONNECTED, PATIENCE, Fleet, fleet, listens, need_nginx

pytestmark = pytest.mark.slow

SOON = 30.0  # seconds within which a client that cannot take part must end
WIDE = {"COLUMNS": "1000"}  # no sentence is broken
OUT_OF_DATE = timedelta(days=10)
CLOCK = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *ahead; /* seconds; every process sees at once that it changes */

__attribute__((constructor)) static void find(void) {
    int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
    void *found = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) ahead = found;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!failed && is_wall && ahead) now->tv_sec += *ahead;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    return now ? *now = exact.tv_sec : exact.tv_sec;
}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Start a federation of three enrolled clients, two of which have joined."""
    need_nginx()
    with fleet(tmp_path_factory.mktemp("fleet") / "f") as up:
        up.enroll("0", "1", "2")
        up.join("0", "1")
        yield up


def joining(made: Fleet, *more: str | Path, to: str = "", ca: Path | None = None) -> list[str]:
    """Return the command by which client 2 joins; without `to` through the proxy."""
    words = ("--superlink", to or f"127.0.0.1:{made.door}", "--ca", ca or made.ca)
    own = ("--key", made.folder / "keys/2", "--partition", "2/3")
    return [str(word) for word in (BIN / "fedkeel", "join", *words, *own, *more)]


def refusal(made: Fleet, *command: str | Path, extra: Mapping[str, str] | None = None) -> str:
    """Run a command that must be refused soon, and return its output."""
    name = f"refused-{len(made.started)}"
    process = made.start(name, *command, extra={**WIDE, **(extra or {})})
    assert process.ended(SOON) == 1, process.text
    assert "Ready to take part" not in process.text
    return process.text


@contextmanager
def serving(
    made: Fleet, name: str, *more: str | Path, extra: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run client 2 during the block, and stop it in order."""
    process = made.start(name, *joining(made, *more), extra={**WIDE, **(extra or {})})
    try:
        yield process
        assert process.stop() == 0
        assert "stopped as asked; nothing is left running" in process.text
    finally:
        process.popen.terminate()
        process.ended()


def start_proxy(made: Fleet, name: str, keys: Path, host: str) -> str:
    """Start another proxy with these keys and return its address."""
    where = f"{host}:{free_port()}"
    folder = made.folder / name
    folder.mkdir()
    place = server.ServerOptions(keys, made.folder / "state", made.work, made.port, where)
    process = made.start(name, *server.commands(place, folder)["proxy"])
    port = int(where.rpartition(":")[2])
    wait_for(lambda: listens(port) or host != "127.0.0.1", lambda: process.text)
    return where


@dataclass(frozen=True)
class Clock:
    """The wall clock of a client's machine; its monotonic clock is right."""

    library: Path
    ahead: Path

    @property
    def env(self) -> dict[str, str]:
        """Return the environment that makes a process use this clock."""
        return {"LD_PRELOAD": str(self.library), "CLOCK_AHEAD": str(self.ahead)}

    def set(self, seconds: int) -> None:
        """Set the clock to this many seconds ahead of the true time."""
        with self.ahead.open("r+b" if self.ahead.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library that shows processes this clock (libfaketime breaks Python's waits)."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NO C COMPILER FOR A WRONG CLOCK (apt-get install gcc)")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    made = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(made), str(folder / "clock.c")]
    subprocess.run(command, check=True)
    return made


@pytest.fixture
def clock(library: Path, tmp_path: Path) -> Clock:
    """Return a clock that can be set wrong."""
    return Clock(library, tmp_path / "ahead")


# ---------------------------------------------------------------- the way to the server


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_certificate_is_valid_for_localhost_and_its_address(made: Fleet, host: str) -> None:
    """For names and addresses of other machines see test_namespaces.

    TLS failed by one name and worked by another in
    https://github.com/securefederatedai/openfederatedlearning/issues/1265.
    """
    done = made.call(*joining(made, "--check", to=f"{host}:{made.door}"), extra=WIDE)
    assert done.code == 0, done.out
    assert f"the server is {host} and belongs to this CA" in done.out


def test_a_server_name_that_is_not_in_the_certificate_is_refused_by_name(made: Fleet) -> None:
    where = start_proxy(made, "elsewhere", made.folder / "pki", "127.0.0.2")
    output = refusal(made, *joining(made, to=where))
    assert "certificate is not for 127.0.0.2; it is for: localhost, 127.0.0.1, ::1" in output
    assert "or the operator runs: fedkeel pki renew --host 127.0.0.2" in output


def test_a_client_without_tls_is_refused(made: Fleet) -> None:
    """fedkeel has no such option, and the server refuses Flower's own program."""
    assert "No such option" in made.fedkeel("join", "--insecure").err
    output = refusal(
        made,
        *(BIN / "flower-supernode", "--superlink", f"127.0.0.1:{made.door}", "--insecure"),
        *("--port", str(free_port())),
    )
    assert "Client error '400 Bad Request'" in output
    assert "The SuperNode could not establish a connection to the SuperLink." in output


def test_a_server_without_tls_is_reported(made: Fleet) -> None:
    plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=plain.serve_forever)
    thread.start()
    try:
        where = f"127.0.0.1:{plain.server_address[1]}"
        assert f"{where} does not speak TLS" in refusal(made, *joining(made, to=where))
    finally:
        plain.shutdown()
        plain.server_close()
        thread.join()


def test_a_ca_of_another_federation_is_refused_with_its_issuer(made: Fleet, tmp_path: Path) -> None:
    pki.init(tmp_path / "pki", [])
    output = refusal(made, *joining(made, ca=tmp_path / "pki/public/ca.crt"))
    assert "the server's certificate is not from this CA: it was issued by CN=FedKeel" in output
    assert "ask the operator for this federation's ca.crt" in output


def test_an_expired_certificate_is_refused_with_its_date(made: Fleet) -> None:
    keys = made.folder / "old-pki"
    shutil.copytree(made.folder / "pki", keys)
    then = datetime.now(UTC) - OUT_OF_DATE
    pki.renew(keys, [], days=1, now=then)
    where = start_proxy(made, "expired", keys, "127.0.0.1")
    output = refusal(made, *joining(made, to=where))
    assert f"the server's certificate expired on {then + timedelta(days=1):%Y-%m-%d}" in output
    assert "else the operator runs: fedkeel pki renew" in output


# ---------------------------------------------------------------- the clock


@pytest.mark.parametrize("ahead", [600, -600, 30])
def test_a_wrong_clock_is_refused_with_its_offset(made: Fleet, clock: Clock, ahead: int) -> None:
    """The reason was hidden in https://github.com/flwrlabs/flower/issues/4844."""
    clock.set(ahead)
    output = refusal(made, *joining(made), extra=clock.env)
    way = "ahead of" if ahead > 0 else "behind"
    assert f"this machine's clock is {abs(ahead)} s {way} the server's ({ahead:+d} s)" in output
    assert "accepted are -305 to +5 s" in output
    assert "timedatectl set-ntp true" in output


@pytest.mark.parametrize("ahead", [600, -600])
def test_flowers_own_node_with_a_wrong_clock_gets_no_work(
    made: Fleet, clock: Clock, ahead: int
) -> None:
    """It ends without a reason in its log."""
    clock.set(ahead)
    process = made.start(
        f"bare{ahead}",
        *(BIN / "flower-supernode", "--superlink", f"127.0.0.1:{made.door}"),
        *("--root-certificates", made.ca, "--port", str(free_port())),
        *("--auth-supernode-private-key", made.folder / "keys/2"),
        extra=clock.env,
    )
    assert process.ended(SOON) == 0
    assert "SuperNode terminated gracefully" in process.text
    assert "SuperNode ID" not in process.text


def test_a_client_whose_clock_goes_wrong_logs_the_reason_and_connects_again_when_it_is_right(
    made: Fleet, clock: Clock
) -> None:
    """The server first has to notice that the old node is gone, which takes a minute."""
    made.enroll("tick")
    own = ("--name", "tick", "--key", made.folder / "keys/tick")
    clock.set(0)
    with serving(made, "tick", *own, extra=clock.env) as tick:
        tick.says(CONNECTED, PATIENCE)
        clock.set(600)
        tick.says("this machine's clock is ", PATIENCE)
        assert 'the server does not accept the signatures of client "tick"' in tick.text
        assert "clock is 600 s ahead of the server's (+600 s); accepted" in tick.text
        clock.set(0)
        wait_for(lambda: tick.text.count(CONNECTED) == 2, lambda: tick.text, PATIENCE)


# ---------------------------------------------------------------- enrollment


def test_a_client_that_is_not_enrolled_gets_no_work(made: Fleet) -> None:
    with serving(made, "eve", "--name", "eve", "--key", made.folder / "eve") as stranger:
        stranger.says('the server does not let client "eve"', PATIENCE)
        assert "it is not enrolled: then send eve.pub to the operator" in stranger.text
        assert CONNECTED not in stranger.text


def test_a_revoked_client_is_out_and_logs_the_reason(made: Fleet) -> None:
    made.enroll("rita")
    with serving(made, "rita", "--name", "rita", "--key", made.folder / "keys/rita") as rita:
        rita.says(CONNECTED, PATIENCE)
        made.succeed("revoke", "rita")
        rita.says(" does not accept its signatures any more, as those of a client that was revoked")
        rita.says('the server does not let client "rita"', PATIENCE)
        assert "Or it was revoked, which takes a new key" in rita.text
        assert rita.text.count(CONNECTED) == 1


# ---------------------------------------------------------------- disks


@dataclass(frozen=True)
class Disk:
    """A file system of its own at a folder."""

    path: Path

    def fill(self) -> None:
        """Leave no room on it."""
        found = os.statvfs(self.path)
        self._size(str((found.f_blocks - found.f_bfree) * found.f_frsize))

    def make_room(self) -> None:
        """Leave 2 GB; tmpfs takes memory only for what is written."""
        self._size("2g")

    def _size(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)


@contextmanager
def disk_at(path: Path) -> Iterator[Disk]:
    """Mount an empty file system of 2 GB during the block."""
    if os.geteuid() != 0:
        pytest.skip("NOT ROOT: NO SMALL DISK CAN BE MOUNTED")
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2g", "small", str(path)]
    if (done := subprocess.run(mount, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"NO SMALL DISK CAN BE MOUNTED: {done.stderr}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_client_with_a_full_disk_is_dropped_with_the_reason_and_returns_with_room(
    made: Fleet,
) -> None:
    run_name, settings = "client-disk", {"rounds": 60, "server.quorum": 2}

    def takes_part() -> bool:
        return "2" in made.records(run_name)[-1].replied

    with disk_at(made.folder / "small") as disk:
        home = ("--home", disk.path / "home")
        with serving(made, "small", *home) as client:
            client.says(CONNECTED, PATIENCE)
            disk.fill()
            run = made.start_run("fedpcd", run_name, settings)
            assert made.done(run_name, 1).replied == ["0", "1"]
            client.says("the disk is full: make room (df -h)", PATIENCE)
            live = made.live(run_name)
            assert live is not None
            assert "No space left on device" in live.refused["2"]
            disk.make_room()
            wait_for(takes_part, lambda: made.tails, PATIENCE)
            run.stop()
        assert client.text.count(CONNECTED) == 1, "without another start"


def test_resume_after_a_full_disk_of_the_server_gives_the_same_weights(made: Fleet) -> None:
    settings = {"rounds": 3}
    made.join("2")
    made.reference("fedpcd", "calm", settings, "inline")
    with disk_at(made.work / "small") as disk:
        at = {**settings, "out": "small"}
        run = made.start_run("fedpcd", "server-disk", at)
        folder = disk.path / "server-disk"
        wait_for(lambda: (folder / "checkpoints/round-000001.ckpt").exists(), seconds=PATIENCE)
        disk.fill()
        assert run.ended(PATIENCE) == 1
        assert "No space left on device" in run.text
        disk.make_room()
        output = made.succeed(*made.arguments("fedpcd", "server-disk", at), "--resume")
        assert re.search("going on after round [12]$", output, re.MULTILINE)
        assert (folder / "weights.npz").read_bytes() == made.weights("calm")
    assert made.joined["2"].stop() == 0
