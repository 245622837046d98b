"""The server's side without containers: SuperLink, app process and proxy, kept running.

The SuperLink serves its Control and Runtime APIs, which authenticate nobody, on the same port as
the clients' Fleet API; so it listens on loopback, and only the proxy is seen from outside.
"""

import ipaddress
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from common.errors import DeployError
from common.io.files import file_lock
from deploy.federation.certificates import is_key_of, load_certificate, load_key
from deploy.federation.pki import certificate_info
from deploy.federation.superlink_client import read_address
from deploy.system.flower_env import QUIET
from deploy.system.private_files import make_folder
from deploy.system.process_group import ProcessGroup, bin_folder

LOG_BYTES = 16 << 20  # a log file is moved away beyond
POLL_SECONDS = 0.5
LONGEST_PAUSE = 30.0
HEALTHY_SECONDS = 60.0
TASK_POLL_SECONDS = 0.2  # of the app process; Flower's own is 1 s
NAME = re.compile(r"\$\{([A-Z_]+)\}")

Say = Callable[[str], None]


@dataclass(frozen=True)
class ServerOptions:
    """Where a server keeps what, and where it listens.

    Attributes:
        pki: folder of keys and certificates, see `deploy.federation.pki`.
        state: folder of the database and the logs.
        runs: working directory of the app process, below which runs are written.
        port: of the SuperLink, on loopback.
        fleet: HOST:PORT of the proxy; "" starts none.
    """

    pki: Path
    state: Path
    runs: Path
    port: int = 8000
    fleet: str = "0.0.0.0:8443"

    @property
    def superlink(self) -> str:
        """The SuperLink's address."""
        return f"127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate that clients trust."""
        return self.pki / "public/ca.crt"


def commands(place: ServerOptions, folder: Path) -> dict[str, list[str]]:
    """Return what has to run, by name; `folder` takes the proxy's files.

    Raises:
        DeployError: a key or certificate is missing, or nginx is.
    """
    certificate, key = place.pki / "server/server.crt", place.pki / "server/server.key"
    secret = place.pki / "link/superexec.secret"
    for path in (place.ca, certificate, key, secret):
        if not path.is_file():
            raise DeployError(f"{path} is missing; fedkeel pki init --dir {place.pki} makes it")
    certificate_info(place.pki)
    private, public = load_key(key), load_certificate(certificate)
    if private is None or public is None or not is_key_of(private, public):
        raise DeployError(
            f"{key} is not the key of {certificate}; put back the pair that belongs together, or "
            f"make a new one: fedkeel pki renew --dir {place.pki}"
        )
    bin_ = bin_folder()
    wanted = {
        "superlink": [
            *(str(bin_ / "flower-superlink"), "--host", "127.0.0.1", "--port", str(place.port)),
            *("--ssl-ca-certfile", str(place.ca), "--ssl-certfile", str(certificate)),
            *("--ssl-keyfile", str(key), "--enable-supernode-auth"),
            *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
            *("--database", str(place.state / "state.db")),
        ],
        "app process": [
            *(str(bin_ / "flower-superexec"), "--runtime-api-address", place.superlink),
            *("--root-certificates", str(place.ca), "--superexec-auth-secret-file", str(secret)),
        ],
    }
    if place.fleet:
        nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if nginx is None:
            raise DeployError(
                "nginx is not installed, and without it clients on other machines would have to "
                "be let to the SuperLink's port, where anybody may submit code: install nginx, or "
                '--fleet "" for clients on this machine alone'
            )
        config = folder / "nginx.conf"
        config.write_text(proxy_config(place, folder), encoding="utf-8")
        wanted["proxy"] = [nginx, "-e", "stderr", "-p", str(folder), "-c", str(config)]
    return wanted


def proxy_config(place: ServerOptions, folder: Path) -> str:
    """Return nginx's configuration, from the template that the container uses as well."""
    host, port = read_address(place.fleet)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise DeployError(
            f"--fleet takes the address to listen on, such as 0.0.0.0:8443, not {place.fleet}"
        ) from None
    values = {
        "LISTEN": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "SUPERLINK": place.superlink,
        "RESOLVER": "127.0.0.1",
        "CERT": str(place.pki / "server/server.crt"),
        "KEY": str(place.pki / "server/server.key"),
        "CA": str(place.ca),
        "RUN_DIR": str(folder),
        "ACCESS_LOG": str(place.state / "logs/access.log"),
    }
    template = files("deploy").joinpath("nginx.conf.template").read_text(encoding="utf-8")
    return NAME.sub(lambda found: values[found[1]], template)


@dataclass
class _Service:
    name: str
    command: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    begun: float = 0.0
    tries: int = 0
    again: float = 0.0


def run_server(place: ServerOptions, say: Say, stop: threading.Event) -> None:
    """Keep the server's processes running until `stop` is set.

    Raises:
        DeployError: something is missing, or a port is taken.
    """
    make_folder(place.state, close=True)
    taken = DeployError(
        f"another fedkeel server runs on {place.state}; stop it first, or give this one a --state "
        "of its own"
    )
    with file_lock(place.state / "lock", taken):
        _check_ports(place)
        for folder in (place.state / "logs", place.state / "proxy", place.runs):
            folder.mkdir(parents=True, exist_ok=True)
        _run(place, commands(place, place.state / "proxy"), say, stop)


def _run(
    place: ServerOptions, wanted: Mapping[str, list[str]], say: Say, stop: threading.Event
) -> None:
    proxy = f", clients on {place.fleet}" if place.fleet else ", no clients from outside"
    say(f"SuperLink on {place.superlink}{proxy}; logs in {place.state / 'logs'}")
    services = [
        _Service(name, command, place.state / "logs" / f"{name.replace(' ', '-')}.log")
        for name, command in wanted.items()
    ]
    group = ProcessGroup()
    try:
        while not stop.is_set() and group.has_leader():
            for service in services:
                _tend(service, group, place, say)
            stop.wait(POLL_SECONDS)
    finally:
        alive = [s.process for s in services if s.process and s.process.poll() is None]
        group.end(*reversed(alive))


def _tend(service: _Service, group: ProcessGroup, place: ServerOptions, say: Say) -> None:
    """Start a service that does not run, unless it ended too often just now."""
    now = time.monotonic()
    if service.process is not None and service.process.poll() is None:
        return
    if service.process is not None:
        code, service.process = service.process.returncode, None
        service.tries = 1 if now - service.begun > HEALTHY_SECONDS else service.tries + 1
        pause = 0.0 if service.tries == 1 else min(2.0**service.tries, LONGEST_PAUSE)
        service.again = now + pause
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        say(f"the {service.name} {how}; it is started again (see {service.log})")
    if now >= service.again:
        if service.log.exists() and service.log.stat().st_size > LOG_BYTES:
            service.log.replace(service.log.with_suffix(".log.1"))
        with service.log.open("ab") as out:
            service.process = group.start(
                service.command, cwd=place.runs, env=_environment(place), out=out
            )
        service.begun = now


def _environment(place: ServerOptions) -> Mapping[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    return {
        **kept,
        **QUIET,
        "FLWR_HOME": str(place.state / "flwr"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(TASK_POLL_SECONDS),
        "PATH": f"{bin_folder()}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
    }


def _check_ports(place: ServerOptions) -> None:
    _check_port("127.0.0.1", place.port)
    if place.fleet:
        host, port = read_address(place.fleet)
        if port == place.port:
            raise DeployError(f"the SuperLink and the clients cannot both have port {port}")
        _check_port(host, port)


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise DeployError(f"port {port} of {host} cannot be listened on: {error}") from error
