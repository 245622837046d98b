"""The operator's connection to a SuperLink, through Flower's own command line."""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from common.errors import DeployError
from deploy.federation.tls_errors import (
    explain_certificate,
    explain_handshake,
    explain_no_connection,
)
from deploy.system.flower_env import QUIET
from deploy.system.process_group import bin_folder

Address = tuple[str, int]

CONNECT_SECONDS = 10.0
LONGEST = 400  # characters of what Flower says
FRAME = " \u256d\u2500\u256e\u2502\u2570\u256f"  # what Flower's command draws around its errors
CODE = re.compile(r"\[code: (\d+)\]")

# Flower's numbers for what a SuperLink refuses.
REFUSALS: Mapping[int, str] = {
    15: "the run config has a key that the app does not know, or a value it cannot read",
    16: "it knows no such run",
    22: "the public key is not of a type that it takes",
    23: "the public key is registered already, or was once and has been revoked",
    24: "it knows no such client",
    1001: "it runs another version of Flower than this machine",
}


@dataclass(frozen=True)
class SuperLinkClient:
    """A SuperLink and how to trust it.

    Args:
        address: its HOST:PORT; the private one, not the proxy's.
        ca: the authority's certificate; None trusts those that this machine trusts.
    """

    address: str
    ca: Path | None

    def flwr(self, *arguments: str, timeout: float = 120.0) -> Any:
        """Run `flwr ARGUMENTS --format json` against this SuperLink and return what it says.

        Raises:
            DeployError: the SuperLink cannot be reached, trusted or understood, or it refuses.
        """
        return self._ask([str(bin_folder() / "flwr"), *arguments, "--format", "json"], timeout)

    def nodes(self, timeout: float = 60.0) -> list[dict[str, Any]]:
        """Return what the SuperLink knows of each client, revoked ones included.

        Keys as in `deploy.federation.list_supernodes.described`. Errors are those of `flwr`.
        """
        ask = "from deploy.federation.list_supernodes import main; main()"
        trusted = [] if self.ca is None else [str(self.ca.absolute())]
        said = self._ask([sys.executable, "-P", "-c", ask, self.address, *trusted], timeout)
        nodes: list[dict[str, Any]] = said["nodes"]
        return nodes

    def _ask(self, command: Sequence[str], timeout: float) -> Any:
        check_tls(self.address, self.ca)
        connection: dict[str, Any] = {"address": self.address}
        if self.ca is not None:
            connection["root-certificates"] = str(self.ca.absolute())
        with tempfile.TemporaryDirectory(prefix="fedkeel-link-") as home:
            config = {"superlink": {"default": "link", "link": connection}}
            (Path(home) / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
            try:
                done = subprocess.run(
                    command,
                    env=self._env(home),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise DeployError(
                    f"the SuperLink at {self.address} did not answer within {timeout:g} s"
                ) from error
            except OSError as error:
                raise DeployError(
                    f"{command[0]} cannot be run: {error.strerror}; install Flower: "
                    'pip install "flwr[simulation]"'
                ) from error
        return read_flwr_output(self.address, done.returncode, done.stdout, done.stderr)

    def _env(self, home: str) -> dict[str, str]:
        host, _ = read_address(self.address)
        direct = ",".join(filter(None, [os.environ.get("NO_PROXY"), host]))
        return {
            **os.environ,
            **QUIET,
            "FLWR_HOME": home,
            "NO_PROXY": direct,
            "no_proxy": direct,
            "NO_COLOR": "1",
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }


def read_flwr_output(address: str, code: int, out: str, err: str) -> Any:
    """Return what Flower's command said as JSON.

    Raises:
        DeployError: it said that it failed, or nothing that can be read.
    """
    try:
        said = json.loads(out)
    except ValueError:
        said = None
    if code == 0 and isinstance(said, dict) and said.get("success") is True:
        return said
    text = str(said["error-message"]) if isinstance(said, dict) and "error-message" in said else ""
    text = text or err or out
    if "403 Forbidden" in text:
        raise DeployError(
            f"{address} lets clients in and nobody else (403): it is the proxy; use the address of "
            "the SuperLink itself, which only its own machine or private network reaches"
        )
    found = CODE.search(text)
    if found and int(found[1]) in REFUSALS:
        raise DeployError(f"the SuperLink at {address} refuses: {REFUSALS[int(found[1])]}")
    lines = [bare for line in text.splitlines() if (bare := line.strip(FRAME))]
    end = " ".join(lines)[-LONGEST:] or "nothing was said"
    raise DeployError(f"the SuperLink at {address} cannot do it (code {code}): {end}")


def check_tls(address: str, ca: Path | None, timeout: float = CONNECT_SECONDS) -> None:
    """Connect to a server over TLS, and verify its certificate.

    Args:
        address: HOST:PORT of the server.
        ca: the authority's certificate; None trusts the CAs that this machine trusts.
        timeout: seconds for the connection, and again for the handshake.

    Raises:
        DeployError: there is no server, it does not speak TLS, or its certificate fails.
    """
    host, port = read_address(address)
    trusted = "any CA that this machine trusts" if ca is None else f"the CA in {ca}"
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise DeployError(
            f"{ca} is not a readable certificate ({error.strerror or error}); give the "
            "federation's public/ca.crt, --ca FILE, or run this in the folder that holds pki/"
        ) from error
    try:
        connection = socket.create_connection((host, port), timeout)
    except (OSError, UnicodeError) as error:
        raise DeployError(str(explain_no_connection(address, error, timeout))) from error
    try:
        with connection:
            connection.settimeout(timeout)
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        reason = explain_certificate(host, error, trusted, datetime.now(UTC))
        raise DeployError(f"{address}: {reason}") from error
    except (OSError, UnicodeError) as error:
        raise DeployError(str(explain_handshake(address, error, timeout))) from error


def read_address(text: str) -> Address:
    """Return host and port of HOST:PORT; an IPv6 address stands in brackets.

    Raises:
        DeployError: it is something else.
    """
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    plain = bare and "/" not in text and "@" not in text and not any(c.isspace() for c in text)
    if not plain or (":" in bare) != host.startswith("[") or not port.isdecimal():
        raise DeployError(
            f'the server\'s address is "{text}", expected HOST:PORT without https:// or a path, '
            "for example fl.example.org:8443 or [2001:db8::1]:8443"
        )
    if not 0 < int(port) < 2**16:
        raise DeployError(f"the port of {text} must be 1 to {2**16 - 1}")
    return bare, int(port)
