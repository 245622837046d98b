"""Send the operator's commands to a SuperLink, through Flower's command line."""

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
from deploy.system.flower_env import child_env
from deploy.system.process_group import bin_folder

Address = tuple[str, int]

CONNECT_SECONDS = 10.0
MAX_ERROR_CHARACTERS = 400  # of Flower's error message
FRAME = " \u256d\u2500\u256e\u2502\u2570\u256f"  # Flower draws it around errors
CODE = re.compile(r"\[code: (\d+)\]")

# Flower's error codes of a SuperLink.
REFUSALS: Mapping[int, str] = {
    15: "the run config has an unknown key or an invalid value",
    16: "there is no such run",
    22: "the public key has the wrong type",
    23: "the public key is registered already, or was revoked",
    24: "there is no such client",
    1001: "its Flower version differs from the one on this machine",
}


@dataclass(frozen=True)
class SuperLinkClient:
    """A SuperLink and the CA that signed its certificate.

    Args:
        address: HOST:PORT of the SuperLink itself, not of the proxy.
        ca: The CA's certificate. None trusts the CAs that this machine trusts.
    """

    address: str
    ca: Path | None

    def flwr(self, *arguments: str, timeout: float = 120.0) -> Any:
        """Run `flwr ARGUMENTS --format json` against this SuperLink and return its reply.

        Raises:
            DeployError: The SuperLink cannot be reached or trusted, rejects the command, or
                sends a bad reply.
        """
        return self._run([str(bin_folder() / "flwr"), *arguments, "--format", "json"], timeout)

    def nodes(self, timeout: float = 60.0) -> list[dict[str, Any]]:
        """Return the SuperLink's entry of each client, revoked ones included.

        Keys as in `deploy.federation.list_supernodes.node_entry`. Errors are those of `flwr`.
        """
        script = "from deploy.federation.list_supernodes import main; main()"
        trusted = [] if self.ca is None else [str(self.ca.absolute())]
        reply = self._run([sys.executable, "-P", "-c", script, self.address, *trusted], timeout)
        nodes: list[dict[str, Any]] = reply["nodes"]
        return nodes

    def _run(self, command: Sequence[str], timeout: float) -> Any:
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
        return {
            **os.environ,
            **child_env(host),
            "FLWR_HOME": home,
            "NO_COLOR": "1",
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }


def read_flwr_output(address: str, code: int, out: str, err: str) -> Any:
    """Return the JSON output of Flower's command.

    Args:
        address: HOST:PORT of the SuperLink, for errors.
        code: Exit code of the command.
        out: Its standard output.
        err: Its standard error.

    Raises:
        DeployError: The command failed, or its output is not JSON.
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
            f"{address} accepts only clients (403): it is the proxy; use the address of the "
            "SuperLink itself, from its own machine or private network"
        )
    match = CODE.search(text)
    if match and int(match[1]) in REFUSALS:
        raise DeployError(
            f"the SuperLink at {address} rejects the command: {REFUSALS[int(match[1])]}"
        )
    lines = [bare for line in text.splitlines() if (bare := line.strip(FRAME))]
    end = " ".join(lines)[-MAX_ERROR_CHARACTERS:] or "no output"
    raise DeployError(f"the command failed on the SuperLink at {address} (exit code {code}): {end}")


def check_tls(address: str, ca: Path | None, timeout: float = CONNECT_SECONDS) -> None:
    """Connect to a server over TLS, and verify its certificate.

    Args:
        address: HOST:PORT of the server.
        ca: The CA's certificate. None trusts the CAs that this machine trusts.
        timeout: Timeout in seconds of the connection, and again of the handshake.

    Raises:
        DeployError: No server answers, it does not speak TLS, or its certificate is not trusted.
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
    """Return the host and the port of HOST:PORT. An IPv6 address has brackets.

    Raises:
        DeployError: The text has another form.
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
