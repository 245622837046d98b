"""Run the server without containers: SuperLink, app process and proxy, restarted when they end.

The SuperLink serves its Control and Runtime APIs on the same port as the clients' Fleet API, and
these two authenticate no one. So it listens on loopback, and clients reach it through the proxy.
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
from deploy.federation.database import prepare_database, shorten_log
from deploy.federation.pki import certificate_info
from deploy.federation.superlink_client import read_address
from deploy.system.flower_env import child_env
from deploy.system.private_files import make_folder
from deploy.system.process_group import ProcessGroup, bin_folder

LOG_BYTES = 16 << 20  # a larger log file is rotated
POLL_SECONDS = 0.5
MAX_RESTART_DELAY_SECONDS = 30.0
HEALTHY_SECONDS = 60.0  # a process that ran longer restarts without delay
TASK_POLL_SECONDS = 0.2  # of the app process, Flower's default is 1 s
LARGEST_MESSAGE = 300  # MB; a ServerApp refuses models of more than 250 MB
NAME = re.compile(r"\$\{([A-Z_]+)\}")

Report = Callable[[str], None]  # prints one event


@dataclass(frozen=True)
class ServerOptions:
    """The folders and addresses of a server.

    Attributes:
        pki: Folder of keys and certificates, see `deploy.federation.pki`.
        state: Folder of the database and the logs.
        runs: Working directory of the app process. Runs are written below it.
        port: Port of the SuperLink on loopback.
        fleet: HOST:PORT of the proxy. "" starts no proxy.
        largest_message: Largest part of a client's message that the proxy accepts, in MB.
    """

    pki: Path
    state: Path
    runs: Path
    port: int = 8000
    fleet: str = "0.0.0.0:8443"
    largest_message: int = LARGEST_MESSAGE

    @property
    def superlink(self) -> str:
        """The SuperLink's address."""
        return f"127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        """The SuperLink's database."""
        return self.state / "state.db"

    @property
    def ca(self) -> Path:
        """The CA certificate that clients trust."""
        return self.pki / "public/ca.crt"


def commands(options: ServerOptions, folder: Path) -> dict[str, list[str]]:
    """Return the command of each process by name. Write the proxy's files to `folder`.

    Raises:
        DeployError: A key, a certificate or nginx is missing.
    """
    certificate, key = options.pki / "server/server.crt", options.pki / "server/server.key"
    secret = options.pki / "link/superexec.secret"
    for path in (options.ca, certificate, key, secret):
        if not path.is_file():
            raise DeployError(f"{path} is missing; make it: fedkeel pki init --dir {options.pki}")
    certificate_info(options.pki)
    private, public = load_key(key), load_certificate(certificate)
    if private is None or public is None or not is_key_of(private, public):
        raise DeployError(
            f"{key} is not the key of {certificate}; restore the matching pair, or make a new "
            f"one: fedkeel pki renew --dir {options.pki}"
        )
    bin_ = bin_folder()
    commands_by_name = {
        "superlink": [
            *(str(bin_ / "flower-superlink"), "--host", "127.0.0.1", "--port", str(options.port)),
            *("--ssl-ca-certfile", str(options.ca), "--ssl-certfile", str(certificate)),
            *("--ssl-keyfile", str(key), "--enable-supernode-auth"),
            *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
            *("--database", str(options.database)),
        ],
        "app process": [
            *(str(bin_ / "flower-superexec"), "--runtime-api-address", options.superlink),
            *("--root-certificates", str(options.ca), "--superexec-auth-secret-file", str(secret)),
        ],
    }
    if options.fleet:
        nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if nginx is None:
            raise DeployError(
                "nginx is not installed; clients on other machines need it, because anyone who "
                "reaches the SuperLink's own port may submit code. Install nginx, or use "
                '--fleet "" if all clients are on this machine'
            )
        config = folder / "nginx.conf"
        config.write_text(proxy_config(options, folder), encoding="utf-8")
        commands_by_name["proxy"] = [nginx, "-e", "stderr", "-p", str(folder), "-c", str(config)]
    return commands_by_name


def proxy_config(options: ServerOptions, folder: Path) -> str:
    """Return nginx's configuration, from the template that the container uses too."""
    host, port = read_address(options.fleet)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise DeployError(
            f"--fleet takes the IP address to listen on, such as 0.0.0.0:8443, not {options.fleet}"
        ) from None
    values = {
        "LISTEN": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "SUPERLINK": options.superlink,
        "RESOLVER": "127.0.0.1",
        "CERT": str(options.pki / "server/server.crt"),
        "KEY": str(options.pki / "server/server.key"),
        "CA": str(options.ca),
        "LARGEST": str(options.largest_message),
        "RUN_DIR": str(folder),
        "ACCESS_LOG": str(options.state / "logs/access.log"),
    }
    template = files("deploy").joinpath("nginx.conf.template").read_text(encoding="utf-8")
    return NAME.sub(lambda match: values[match[1]], template)


@dataclass
class _Service:
    name: str
    command: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float = 0.0


def run_server(options: ServerOptions, report: Report, stop: threading.Event) -> None:
    """Keep the server's processes running until `stop` is set.

    Raises:
        DeployError: A key, a certificate, nginx or a port is not available.
    """
    make_folder(options.state, close=True)
    lock_error = DeployError(
        f"another fedkeel server runs on {options.state}; stop it first, or give this one another "
        "--state"
    )
    with file_lock(options.state / "lock", lock_error):
        _check_ports(options)
        for folder in (options.state / "logs", options.state / "proxy", options.runs):
            folder.mkdir(parents=True, exist_ok=True)
        prepare_database(options.database)
        _run(options, commands(options, options.state / "proxy"), report, stop)


def _run(
    options: ServerOptions, wanted: Mapping[str, list[str]], report: Report, stop: threading.Event
) -> None:
    proxy = (
        f", clients connect to {options.fleet}"
        if options.fleet
        else ", no proxy for other machines"
    )
    report(f"SuperLink on {options.superlink}{proxy}; logs in {options.state / 'logs'}")
    services = [
        _Service(name, command, options.state / "logs" / f"{name.replace(' ', '-')}.log")
        for name, command in wanted.items()
    ]
    group = ProcessGroup()
    try:
        while not stop.is_set() and group.has_leader():
            for service in services:
                _restart_if_ended(service, group, options, report)
            shorten_log(options.database)
            stop.wait(POLL_SECONDS)
    finally:
        alive = [s.process for s in services if s.process and s.process.poll() is None]
        group.end(*reversed(alive))


def _restart_if_ended(
    service: _Service, group: ProcessGroup, options: ServerOptions, report: Report
) -> None:
    """Start a service that is not running. Wait longer after each quick failure."""
    now = time.monotonic()
    if service.process is not None and service.process.poll() is None:
        return
    if service.process is not None:
        code, service.process = service.process.returncode, None
        service.failures = 1 if now - service.started_at > HEALTHY_SECONDS else service.failures + 1
        delay = (
            0.0 if service.failures == 1 else min(2.0**service.failures, MAX_RESTART_DELAY_SECONDS)
        )
        service.restart_at = now + delay
        outcome = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        report(f"the {service.name} {outcome}; restarting it (see {service.log})")
    if now >= service.restart_at:
        if service.log.exists() and service.log.stat().st_size > LOG_BYTES:
            service.log.replace(service.log.with_suffix(".log.1"))
        with service.log.open("ab") as out:
            service.process = group.start(
                service.command, cwd=options.runs, env=_environment(options), out=out
            )
        service.started_at = now


def _environment(options: ServerOptions) -> Mapping[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    return {
        **inherited,
        **child_env(),
        "FLWR_HOME": str(options.state / "flwr"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(TASK_POLL_SECONDS),
        "PATH": f"{bin_folder()}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
    }


def _check_ports(options: ServerOptions) -> None:
    _check_port("127.0.0.1", options.port)
    if options.fleet:
        host, port = read_address(options.fleet)
        if port == options.port:
            raise DeployError(
                f"--port and --fleet cannot both have port {port}; change one of them"
            )
        _check_port(host, port)


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise DeployError(f"cannot listen on port {port} of {host}: {error}") from error
