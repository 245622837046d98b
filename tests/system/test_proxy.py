"""The proxy, a real nginx, in front of a fake SuperLink that records its requests."""

import shutil
import socket
import ssl
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import deploy
from deploy.federation import pki
from tests.system.federation import free_port, wait_for

TEMPLATE = Path(deploy.__file__).with_name("nginx.conf.template")
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
POLL = "/v1/fleet/pull-messages"
PUSH = "/v1/fleet/push-object"
SIGNED = {  # of the form that nginx checks; the fake SuperLink checks no signature
    "flwr-public-key": "QUJD" * 60,
    "flwr-timestamp": "2026-12-01T10:00:00.123456+00:00",
    "flwr-signature": "QUJD" * 30,
}
SIGNED_LINES = "".join(f"{name}: {value}\r\n" for name, value in SIGNED.items())

pytestmark = pytest.mark.skipif(
    NGINX is None, reason="NGINX IS NOT INSTALLED (apt-get install nginx-light)"
)


class SuperLink(ThreadingHTTPServer):
    """Answer every request with 200 over TLS, and record it."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.seen: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.received = 0  # bytes of bodies
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server/server.crt", folder / "server/server.key")
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )

    def handle_error(self, *_: object) -> None:
        """Ignore errors: some tests make the proxy close the connection."""


class Asked(BaseHTTPRequestHandler):
    server: SuperLink

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        self.close_connection = True
        if not self.raw_requestline or not self.parse_request():
            return
        self.server.seen.append(f"{self.command} {self.path}")
        self.server.heads.append({key.lower(): value for key, value in self.headers.items()})
        self.take(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                self.take(size)
                self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    def take(self, size: int) -> None:
        while size and (part := self.rfile.read(min(size, 65536))):
            size -= len(part)
            self.server.received += len(part)


@dataclass
class Proxy:
    """A running nginx and the fake SuperLink behind it."""

    folder: Path
    superlink: SuperLink
    trusted: ssl.SSLContext
    port: int = field(default_factory=free_port)

    @property
    def access_log(self) -> str:
        return (self.folder / "access.log").read_text()

    @contextmanager
    def connection(self) -> Iterator[ssl.SSLSocket]:
        """Open a TLS connection to nginx and check its certificate."""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=10) as plain,
            self.trusted.wrap_socket(plain, server_hostname="localhost") as channel,
        ):
            yield channel

    def send(self, raw: bytes) -> list[int]:
        """Send these bytes on a fresh connection; return the status of each answer."""
        with self.connection() as channel:
            channel.sendall(raw)
            answer = b""
            with suppress(TimeoutError, ConnectionError, ssl.SSLError):
                while part := channel.recv(65536):
                    answer += part
        lines = answer.split(b"HTTP/1.1 ")[1:]
        return [int(line[:3]) for line in lines]

    def ask(self, line: str, *headers: str, body: bytes = b"") -> list[int]:
        """Send one request; return the status of each answer."""
        named = any(header.lower().startswith("host:") for header in headers)
        head = [f"{line} HTTP/1.1", "Connection: close", *headers]
        head += [] if named else ["Host: localhost"]
        given = {header.partition(":")[0].lower() for header in headers}
        head += [f"{name}: {value}" for name, value in SIGNED.items() if name not in given]
        head += [f"Content-Length: {len(body)}"] if body or line.endswith(PUSH) else []
        return self.send("\r\n".join([*head, "", ""]).encode("latin-1") + body)


@contextmanager
def nginx(folder: Path, port: int, superlink: str, certificates: Path, ca: Path) -> Iterator[None]:
    """Run nginx with the product's own configuration."""
    values = {
        "LISTEN": f"127.0.0.1:{port}",
        "SUPERLINK": superlink,
        "RESOLVER": "127.0.0.1",
        "CERT": str(certificates / "server/server.crt"),
        "KEY": str(certificates / "server/server.key"),
        "CA": str(ca),
        "LARGEST": "50",
        "RUN_DIR": str(folder),
        "ACCESS_LOG": str(folder / "access.log"),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    assert "${" not in text
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    command = [str(NGINX), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with (folder / "error.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)

    def listens() -> bool:
        assert process.poll() is None, (folder / "error.log").read_text()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False

    try:
        wait_for(listens)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def proxy(folder: Path, superlink_pki: str = "pki", ca: str = "pki") -> Iterator[Proxy]:
    """Run nginx and the fake SuperLink, with its certificate and nginx's CA from these PKIs."""
    for name in {"pki", superlink_pki, ca}:
        pki.init(folder / name, [])
    behind = SuperLink(folder / superlink_pki)
    thread = threading.Thread(target=behind.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    trusted = ssl.create_default_context(cafile=str(folder / "pki/public/ca.crt"))
    made = Proxy(folder, behind, trusted)
    address = f"127.0.0.1:{behind.server_address[1]}"
    try:
        with nginx(folder, made.port, address, folder / "pki", folder / ca / "public/ca.crt"):
            yield made
    finally:
        behind.shutdown()
        behind.server_close()
        thread.join()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxy(tmp_path_factory.mktemp("proxy")) as made:
        yield made


@pytest.fixture
def clean(door: Proxy) -> Proxy:
    door.superlink.seen.clear()
    door.superlink.heads.clear()
    door.superlink.received = 0
    return door


@pytest.mark.parametrize("line", [f"POST {POLL}", "POST /v1/fleet/push-object", "GET /health"])
def test_requests_of_clients_are_passed_on(clean: Proxy, line: str) -> None:
    assert clean.ask(line) == [200]
    assert clean.superlink.seen == [line]


CONTROL = "/v1/control/start-run"


@pytest.mark.parametrize(
    "target",
    [
        CONTROL,
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/",
        "/docs",
        "/openapi.json",
        "/v1",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/%2E%2e/control/start-run",
        "/v1/fleet/.%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/%252e%252e/control/start-run",
        "/v1/fleet/x%2f..%2f..%2fcontrol/start-run",
        "/v1/fleet/..;/control/start-run",
        "/v1/fleet\\..\\control\\start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/control/../fleet/pull-messages",
        "/v1/control/start-run/../../fleet/pull-messages",
        "/v1//fleet/pull-messages",
        "//v1/fleet/pull-messages",
        "//v1/control/start-run",
        "/./v1/fleet/pull-messages",
        "/V1/FLEET/PULL-MESSAGES",
        "/v1/Fleet/pull-messages",
        "/%76%31/fleet/pull-messages",
        "/v1/fleet/pull%2dmessages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages?/../../control/start-run",
        "/v1/fleet/pull-messages?x=1",
        "/v1/fleet/pull-messages#/v1/control/start-run",
        "/v1/fleet/pull-messages;/v1/control/start-run",
        "/v1/fleet/pull-messages%00",
        "/v1/fleet/pull-messages%0a",
        "/v1/fleet/pull-messages%0d%0aX: y",
        "/v1/fleet/pull-messages\t/v1/control/start-run",
        "/v1/fleetcontrol/start-run",
        "/health/",
        "/health/../v1/control/start-run",
        "/Health",
        "https://localhost/v1/control/start-run",
        "https://localhost/v1/fleet/../control/start-run",
        "http://superlink:8000/v1/control/start-run",
        "//superlink/v1/control/start-run",
        "localhost:8000",
        "*",
        "v1/fleet/pull-messages",
    ],
)
def test_other_paths_are_refused_however_they_are_written(clean: Proxy, target: str) -> None:
    for method in ("POST", "GET"):
        answers = clean.ask(f"{method} {target}")
        assert len(answers) <= 1
        assert not answers or answers[0] in {400, 403}, answers
    assert clean.superlink.seen == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_fleet_paths_accept_only_post(clean: Proxy, method: str) -> None:
    assert clean.ask(f"{method} {POLL}") == [403]
    assert clean.superlink.seen == []


@pytest.mark.parametrize("method", ["POST", "PUT", "CONNECT", "TRACE", "get"])
def test_health_accepts_only_get(clean: Proxy, method: str) -> None:
    assert clean.ask(f"{method} /health")[0] in {400, 403, 405}
    assert clean.superlink.seen == []


INNER = f"POST {CONTROL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        f"Content-Length: {len(INNER)}\r\nTransfer-Encoding: chunked",
        f"Transfer-Encoding: chunked\r\nContent-Length: {len(INNER)}",
        f"Content-Length: 0\r\nContent-Length: {len(INNER)}",
        f"Content-Length: {len(INNER)}, 0",
        "Content-Length: +0",
        "Content-Length: -1",
        "Content-Length : 0",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "X: y\r\n Transfer-Encoding: chunked",
        "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQ",
        "Connection: Content-Length\r\nContent-Length: 0",
        "Expect: 100-continue\r\nContent-Length: 0",
    ],
)
def test_a_second_request_hidden_in_a_first_is_not_passed_on(clean: Proxy, headers: str) -> None:
    first = f"POST {POLL} HTTP/1.1\r\nHost: localhost\r\n{SIGNED_LINES}{headers}\r\n\r\n"
    last = f"GET {CONTROL} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    clean.send((first + "0\r\n\r\n" + INNER + last).encode("latin-1"))
    clean.send((first + INNER + last).encode("latin-1"))
    assert not [line for line in clean.superlink.seen if line != f"POST {POLL}"]


def test_a_chunked_body_ends_at_its_last_chunk(clean: Proxy) -> None:
    head = f"POST {POLL} HTTP/1.1\r\nHost: localhost\r\n{SIGNED_LINES}"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    last = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert clean.send((head + "3\r\nabc\r\n0\r\n\r\n" + INNER + last).encode()) == [200, 403, 200]
    assert clean.superlink.seen == [f"POST {POLL}", "GET /health"]
    assert clean.superlink.received == 3


def test_forwarding_headers_are_set_by_the_proxy_only(clean: Proxy) -> None:
    given = ("X-Forwarded-For: 10.9.9.9", "Forwarded: for=10.9.9.9", "flwr_task_token: stolen")
    assert clean.ask(f"POST {POLL}", *given, "Upgrade: h2c") == [200]
    (head,) = clean.superlink.heads
    assert head["x-forwarded-for"] == "127.0.0.1"
    assert head["flwr-signature"] == SIGNED["flwr-signature"]
    assert not {"forwarded", "upgrade", "flwr_task_token", "flwr-task-token"} & set(head)


def test_a_part_of_a_message_is_passed_on_while_it_arrives_and_is_not_stored(
    clean: Proxy,
) -> None:
    half, end = 24 << 20, bytes(1 << 16)
    with clean.connection() as channel:
        head = f"POST {PUSH} HTTP/1.1\r\nHost: localhost\r\n{SIGNED_LINES}Connection: close\r\n"
        channel.sendall(f"{head}Content-Length: {2 * half}\r\n\r\n".encode())
        for _ in range(half // len(end)):
            channel.sendall(end)
        wait_for(lambda: clean.superlink.received >= half - (4 << 20), seconds=10)
        stored = [p for p in clean.folder.rglob("*") if p.is_file() and p.suffix == ""]
        assert not [path for path in stored if path.stat().st_size > 1 << 20]
        for _ in range(half // len(end)):
            channel.sendall(end)
        assert b" 200 " in channel.recv(64)
    assert clean.superlink.received == 2 * half


def _head(path: str, size: object, signed: str = SIGNED_LINES) -> bytes:
    """Return the head of a POST that announces a body of this many bytes."""
    length = "" if size is None else f"Content-Length: {size}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{signed}{length}\r\n".encode()


@pytest.mark.parametrize(
    ("path", "most"),
    [(POLL, 1 << 20), ("/v1/fleet/push-messages", 1 << 20), (PUSH, 50 << 20)],
)
def test_a_body_that_is_too_large_is_refused_before_it_is_sent(
    clean: Proxy, path: str, most: int
) -> None:
    with clean.connection() as channel:
        channel.sendall(_head(path, most + 1))
        assert b" 413 " in channel.recv(64)
    assert clean.superlink.seen == []
    assert clean.ask(f"POST {path}", body=bytes(most)) == [200]


@pytest.mark.parametrize(
    "missing",
    [*SIGNED, "all", "flwr-signature: abc", "flwr-public-key: \x1b[2J", "flwr-timestamp: 1"],
)
@pytest.mark.parametrize("path", [POLL, PUSH])
def test_a_request_without_a_signature_is_refused_before_its_body_is_sent(
    clean: Proxy, path: str, missing: str
) -> None:
    name, _, value = missing.partition(": ")
    kept = {} if name == "all" else {**SIGNED, name: value}
    lines = "".join(f"{key}: {text}\r\n" for key, text in kept.items() if text)
    with clean.connection() as channel:
        channel.sendall(_head(path, 1 << 20, lines))
        assert b" 401 " in channel.recv(64)
    assert clean.superlink.seen == []


def test_a_part_of_a_message_needs_a_length(clean: Proxy) -> None:
    head = f"POST {PUSH} HTTP/1.1\r\nHost: localhost\r\n{SIGNED_LINES}"
    assert clean.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())[0] == 411
    assert clean.superlink.seen == []


@pytest.mark.parametrize(("size", "most"), [(20 << 20, 1), (5 << 20, 32)])
def test_a_stranger_sends_few_large_parts_at_once(clean: Proxy, size: int, most: int) -> None:
    with ExitStack() as stack:
        channels = [stack.enter_context(clean.connection()) for _ in range(most + 3)]
        for channel in channels:
            channel.sendall(_head(PUSH, size) + b"x")
        wait_for(lambda: len(clean.superlink.seen) >= most)
        refused = 0
        for channel in channels:
            channel.settimeout(0.5)
            with suppress(TimeoutError):
                refused += b" 503 " in channel.recv(64)
        assert refused == 3
        assert len(clean.superlink.seen) == most
    wait_for(lambda: clean.ask(f"POST {PUSH}", body=bytes(size)) == [200])


def test_a_hundred_clients_behind_one_address_are_all_answered(clean: Proxy) -> None:
    def client(_: int) -> list[int]:
        head = f"POST {POLL} HTTP/1.1\r\nHost: localhost\r\n{SIGNED_LINES}"
        many = f"{head}\r\n" * 4 + f"{head}Connection: close\r\n\r\n"
        return clean.send(many.encode())

    begin = time.monotonic()
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(client, range(100)))
    assert answers == [[200] * 5] * 100
    assert time.monotonic() - begin < 30


def test_the_log_has_refused_requests_and_uploads_but_no_polls(clean: Proxy) -> None:
    before = len(clean.access_log.splitlines())
    clean.ask("GET /health")
    clean.ask(f"POST {POLL}", body=b"SECRET-BODY")
    clean.ask(f"POST {CONTROL}", "flwr-signature: SECRET-HEADER")
    clean.ask("POST /v1/fleet/push-object")
    lines = wait_for(
        lambda: (now := clean.access_log.splitlines()[before:]) and len(now) == 2 and now
    )
    assert f'"POST {CONTROL}" 403' in lines[0]
    assert '"POST /v1/fleet/push-object" 200' in lines[1]
    assert "SECRET" not in clean.access_log


def test_it_hides_its_version_and_refuses_old_tls(clean: Proxy) -> None:
    with clean.connection() as channel:
        channel.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: channel.recv(4096), b""))
        assert channel.version() == "TLSv1.3"
    assert b"Server: nginx\r\n" in answer
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", clean.port)) as plain, pytest.raises(OSError):  # noqa: PT011
        old.wrap_socket(plain, server_hostname="localhost")


def test_plain_http_is_refused(clean: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", clean.port), timeout=10) as plain:
        plain.sendall(f"POST {POLL} HTTP/1.1\r\nHost: localhost\r\n{SIGNED_LINES}\r\n".encode())
        assert b" 400 " in plain.recv(64)
    assert clean.superlink.seen == []


def test_a_superlink_with_a_certificate_of_another_ca_gets_no_request(tmp_path: Path) -> None:
    with proxy(tmp_path, superlink_pki="other") as made:
        assert made.ask(f"POST {POLL}") == [502]
        assert made.superlink.seen == []
        assert "certificate" in (tmp_path / "error.log").read_text()


def test_when_the_superlink_is_down_clients_get_502_at_once(tmp_path: Path) -> None:
    with proxy(tmp_path) as made:
        assert made.ask("GET /health") == [200]
        made.superlink.socket.close()
        begin = time.monotonic()
        assert made.ask("GET /health") == [502]
        assert time.monotonic() - begin < 5
