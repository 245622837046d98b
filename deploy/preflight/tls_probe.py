"""Connect to the federation's server as a SuperNode does, and ask for its health."""

import http.client
import socket
import ssl
import time
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

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
        server: the Server header.
        ahead: seconds that this machine's clock is ahead of the server's, None without a date.
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


def proxy_url(host: str) -> SplitResult | None:
    """Return the proxy through which a node reaches this host, None if it connects directly."""
    proxies = urllib.request.getproxies()
    url = proxies.get("https") or proxies.get("all")
    if not url or urllib.request.proxy_bypass(host):
        return None
    return urlsplit(url if "//" in url else f"http://{url}")


def open_connection(address: Address) -> socket.socket:
    """Connect to the server as the node does: directly, or through the proxy of the environment.

    Raises:
        OSError: no connection, or the proxy refuses it. The message names the proxy.
    """
    proxy = proxy_url(address[0])
    if proxy is None:
        return socket.create_connection(address, timeout=PATIENCE_SECONDS)
    name = f"the proxy {proxy.hostname}:{proxy.port or 80} of HTTPS_PROXY"
    if proxy.scheme != "http" or not proxy.hostname:
        raise OSError(f"{name} is not an http:// proxy, which these checks need")
    login = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()
    basic = f"Basic {b64encode(login).decode()}"
    headers = {"Proxy-Authorization": basic} if proxy.username else {}
    tunnel = http.client.HTTPConnection(proxy.hostname, proxy.port or 80, timeout=PATIENCE_SECONDS)
    tunnel.set_tunnel(*address, headers=headers)
    try:
        tunnel.connect()
    except (OSError, http.client.HTTPException) as error:
        tunnel.close()
        raise OSError(f"{name} did not connect to {address[0]}: {error}") from error
    return tunnel.sock


def connect_tls(address: Address, context: ssl.SSLContext | None) -> ssl.SSLSocket:
    """Shake hands within PATIENCE_SECONDS. Without a context any certificate is accepted.

    Raises:
        OSError: no connection, no TLS, or a certificate that does not pass.
    """
    if context is None:  # only to look at the certificate; nothing is sent but GET /health
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    raw = open_connection(address)
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
    """Send GET /health. Return None if the answer is not HTTP."""
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
    """Try a TCP connection. Return the error, None for success."""
    try:
        open_connection(address).close()
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
