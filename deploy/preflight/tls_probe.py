"""Connect to the federation's server as a SuperNode does, and ask for its health."""

import http.client
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from common.errors import DeployError
from deploy.federation.superlink_client import Address, read_address

PATIENCE_SECONDS = 5.0
HEALTH = "/health"


@dataclass(frozen=True)
class HealthResponse:
    """An answer to GET /health.

    Attributes:
        status: the HTTP status.
        server: what the server calls itself.
        ahead: seconds that this machine's clock is ahead of the server's; None without a date.
        trusted: whether the server's certificate passed.
    """

    status: int
    server: str
    ahead: float | None
    trusted: bool


def tls_context(authority: Sequence[x509.Certificate]) -> ssl.SSLContext:
    """Return a context that trusts these certificates alone, as the SuperNode's own does."""
    der = b"".join(each.public_bytes(Encoding.DER) for each in authority)
    return ssl.create_default_context(cadata=der)


def connect_tls(address: Address, context: ssl.SSLContext | None) -> ssl.SSLSocket:
    """Shake hands within PATIENCE_SECONDS; without a context any certificate will do.

    Raises:
        OSError: no connection, no TLS, or a certificate that does not pass.
    """
    if context is None:  # only to look at the certificate; nothing is sent but GET /health
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    raw = socket.create_connection(address, timeout=PATIENCE_SECONDS)
    try:
        return context.wrap_socket(raw, server_hostname=address[0])
    except BaseException:
        raw.close()
        raise


def certificate_of(tls: ssl.SSLSocket) -> x509.Certificate:
    """Return the certificate of the server."""
    der = tls.getpeercert(binary_form=True)
    assert der is not None, "a TLS server always has one"
    return x509.load_der_x509_certificate(der)


def get_health(tls: ssl.SSLSocket, address: Address, *, trusted: bool) -> HealthResponse | None:
    """Send GET /health; None when no HTTP comes back."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_SECONDS)
    connection.sock = tls
    try:
        begin = time.time()
        connection.request("GET", HEALTH)
        response = connection.getresponse()
        middle = (begin + time.time()) / 2
    except (OSError, http.client.HTTPException):
        return None
    ahead = None
    with suppress(TypeError, ValueError):  # no date, or none that can be read
        # The header leaves out the fraction of the second, half a second in the mean.
        date = parsedate_to_datetime(response.headers["Date"]).timestamp() + 0.5
        ahead = middle - date
    return HealthResponse(
        response.status, response.headers.get("Server", "unnamed"), ahead, trusted
    )


def connection_error(address: Address) -> Exception | None:
    """Try a TCP connection; return what went wrong, None for nothing."""
    try:
        socket.create_connection(address, timeout=PATIENCE_SECONDS).close()
    except (OSError, UnicodeError) as error:  # a name that cannot be one is a UnicodeError
        return error
    return None


def clock_ahead(superlink: str, ca: Path) -> float | None:
    """Return the seconds that this machine's clock is ahead of the server's, None if unknown."""
    with suppress(OSError, ValueError, DeployError):
        address = read_address(superlink)
        context = tls_context(x509.load_pem_x509_certificates(ca.read_bytes()))
        with connect_tls(address, context) as tls:
            answer = get_health(tls, address, trusted=True)
        return answer.ahead if answer else None
    return None
