"""Before a client connects it is told in plain words what is wrong with the server or with itself.

The servers are real ones on loopback, with certificates made for the case.
"""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from deploy.federation.certificates import is_authority
from deploy.federation.superlink_client import read_address
from deploy.preflight import server_checks, tls_probe
from deploy.preflight.findings import Finding
from deploy.preflight.server_checks import check_server, judge_address, judge_clock, judge_proxy
from deploy.preflight.tls_probe import connection_error, open_connection, proxy_url
from tests.tunnel import tunnel

DAY = timedelta(days=1)
LOCAL = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Signed:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def sign(
    common_name: str,
    by: Signed | None = None,
    names: tuple[str, ...] = (),
    start: timedelta = -2 * DAY,
    end: timedelta = 100 * DAY,
    constrained: bool = True,
) -> Signed:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
    )
    if constrained:
        constraints = x509.BasicConstraints(ca=by is None, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
    if names:
        general = [
            x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
            for name in names
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(general), critical=False)
    return Signed(builder.sign(by.key if by else key, hashes.SHA256()), key)


@pytest.fixture(scope="module")
def authority() -> Signed:
    return sign("the federation's CA", start=-400 * DAY)


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def http(status: str = "200 OK", off: float = 0.0, date: bool = True) -> bytes:
    when = format_datetime(datetime.now(UTC) - timedelta(seconds=off), usegmt=True)
    head = f"Date: {when}\r\n" if date else ""
    return f"HTTP/1.1 {status}\r\nServer: toy\r\n{head}Content-Length: 0\r\n\r\n".encode()


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield HOST:PORT of a server that gives each connection to `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def loop() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # the client may have seen enough
                    connection.settimeout(5)
                    answer(connection)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@contextmanager
def tls(folder: Path, server: Signed, response: bytes) -> Iterator[str]:
    pair = folder / "server.pem"
    pair.write_bytes(server.pem + server.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as channel:
            if channel.recv(4096):
                channel.sendall(response)

    with serving(answer) as address:
        yield address


def examine(folder: Path, authority: Signed, server: Signed, response: bytes) -> dict[str, Finding]:
    ca = folder / "ca.crt"
    ca.write_bytes(authority.pem)
    with tls(folder, server, response) as address:
        return {finding.topic: finding for finding in check_server(address, ca)}


def test_a_good_server_passes_in_every_point(tmp_path: Path, authority: Signed) -> None:
    found = examine(tmp_path, authority, sign("s", authority, LOCAL), http())
    assert list(found) == ["ca file", "address", "certificate", "server", "clock"]
    assert {finding.verdict for finding in found.values()} == {"ok"}


def test_a_certificate_that_ends_soon_is_noted_with_its_days(
    tmp_path: Path, authority: Signed
) -> None:
    found = examine(tmp_path, authority, sign("s", authority, LOCAL, end=20.5 * DAY), http())
    assert found["certificate"].verdict == "note"
    assert "20 days left" in found["certificate"].sentence
    assert "fedkeel pki renew" in found["certificate"].remedy


def test_an_expired_certificate_is_told_with_its_date_and_this_clock_and_still_shows_the_clock(
    tmp_path: Path, authority: Signed
) -> None:
    expired = sign("s", authority, LOCAL, start=-9 * DAY, end=-2 * DAY)
    found = examine(tmp_path, authority, expired, http(off=5000))
    ended = expired.certificate.not_valid_after_utc
    assert found["certificate"].verdict == "problem"
    assert f"expired on {ended:%Y-%m-%d}" in found["certificate"].sentence
    assert f"clock says {datetime.now(UTC):%Y-%m-%d}" in found["certificate"].remedy
    assert found["clock"].verdict == "problem"
    assert "server" not in found, "an answer without trust says nothing of the server"


def test_a_certificate_of_the_future_is_told_apart_from_an_expired_one(
    tmp_path: Path, authority: Signed
) -> None:
    found = examine(tmp_path, authority, sign("s", authority, LOCAL, start=3 * DAY), http())
    assert "is not valid before" in found["certificate"].sentence


@pytest.mark.parametrize("names", [("fl.example.org", "10.0.0.7"), ()])
def test_a_wrong_name_is_told_with_the_names_that_the_certificate_has(
    tmp_path: Path, authority: Signed, names: tuple[str, ...]
) -> None:
    found = examine(tmp_path, authority, sign("s", authority, names), http())
    assert found["certificate"].verdict == "problem"
    assert f"for: {', '.join(names) or 'no name at all'}" in found["certificate"].sentence
    assert "--host 127.0.0.1" in found["certificate"].remedy


def test_a_server_of_another_ca_is_told_with_its_issuer(tmp_path: Path, authority: Signed) -> None:
    other = sign("somebody else")
    found = examine(tmp_path, authority, sign("s", other, LOCAL), http())
    assert "not from this CA" in found["certificate"].sentence
    assert "CN=somebody else" in found["certificate"].sentence


def test_a_server_without_tls_is_told_as_such(tmp_path: Path, authority: Signed) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.pem)

    def plain(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(http("400 Bad Request"))

    with serving(plain) as address:
        *_, last = check_server(address, tmp_path / "ca.crt")
    assert last.verdict == "problem"
    assert "does not speak TLS" in last.sentence


def test_a_server_that_says_nothing_is_not_waited_for(
    tmp_path: Path, authority: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_probe, "PATIENCE_SECONDS", 0.3)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    done = threading.Event()
    with serving(lambda _: (done.wait(10), None)[1]) as address:
        *_, last = check_server(address, tmp_path / "ca.crt")
        done.set()
    assert last.verdict == "problem"
    assert "says nothing" in last.sentence


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (http("404 Not Found"), "something else than a SuperLink answers"),
        (http("502 Bad Gateway"), "the SuperLink behind it does not"),
        (b"SSH-2.0-OpenSSH\r\n", "no HTTP"),
    ],
)
def test_whatever_else_answers_is_no_server(
    tmp_path: Path, authority: Signed, response: bytes, words: str
) -> None:
    found = examine(tmp_path, authority, sign("s", authority, LOCAL), response)
    assert found["certificate"].verdict == "ok"
    assert found["server"].verdict == "problem"
    assert words in found["server"].sentence


# A public report of this bug: https://github.com/flwrlabs/flower/issues/4844
@pytest.mark.parametrize(
    ("off", "verdict", "offset"),
    [(615, "problem", "+61"), (-605, "problem", "-60"), (-95, "note", "-9")],
)
def test_a_wrong_clock_is_told_with_the_word_and_the_offset(
    tmp_path: Path, authority: Signed, off: float, verdict: str, offset: str
) -> None:
    found = examine(tmp_path, authority, sign("s", authority, LOCAL), http(off=off))
    assert found["clock"].verdict == verdict
    assert "clock" in found["clock"].sentence
    assert f"({offset}" in found["clock"].sentence
    assert "timedatectl" in found["clock"].remedy


@pytest.mark.parametrize(
    ("ahead", "verdict"),
    [
        (0.0, "ok"), (1.9, "ok"), (2.0, "note"), (4.9, "note"), (5.0, "problem"),
        (-59.0, "ok"), (-60.0, "note"), (-304.0, "note"), (-305.0, "problem"),
    ],
)  # fmt: skip
def test_the_limits_of_the_clock_are_those_of_flower(ahead: float, verdict: str) -> None:
    assert judge_clock(ahead).verdict == verdict


def test_flower_still_has_these_limits() -> None:
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    assert server_checks.MOST_AHEAD == SYSTEM_TIME_TOLERANCE
    assert server_checks.MOST_BEHIND == SYSTEM_TIME_TOLERANCE + TIMESTAMP_TOLERANCE


def test_an_answer_without_a_date_leaves_the_clock_open(tmp_path: Path, authority: Signed) -> None:
    found = examine(tmp_path, authority, sign("s", authority, LOCAL), http(date=False))
    assert found["clock"].verdict == "note"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"", "not a certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not a certificate"),
        ("key", "PRIVATE KEY"),
        ("openssh", "PRIVATE KEY"),
        ("leaf", "is not the certificate of a CA"),
        ("own", "is not the certificate of a CA"),
        ("old", "expired on"),
    ],
)
def test_a_file_that_is_no_ca_certificate_is_refused_before_anything_is_sent(
    tmp_path: Path, authority: Signed, content: bytes | str | None, words: str
) -> None:
    texts = {
        "key": authority.key_pem,
        "openssh": b"-----BEGIN OPENSSH PRIVATE KEY-----\n",
        "leaf": sign("s", authority, LOCAL).pem,
        "own": sign("s", names=LOCAL, constrained=False).pem,
        "old": sign("old", start=-9 * DAY, end=-DAY).pem,
    }
    ca, seen = tmp_path / "ca.crt", []
    if content is not None:
        ca.write_bytes(texts[content] if isinstance(content, str) else content)
    with serving(lambda connection: seen.append(connection.recv(1))) as address:
        found = {finding.topic: finding for finding in check_server(address, ca)}
    assert found["ca file"].verdict == "problem"
    assert words in found["ca file"].sentence
    assert found["address"].verdict == "ok"
    assert seen in ([], [b""]), "it only saw whether the port is open"


@pytest.mark.parametrize(
    "text",
    [
        "fl.example.org", "https://fl.example.org:8443", "fl.example.org:8443/x", ":8443", "a:b",
        "a:0", "a:65536", "::1:8443", "[::1]", "me@a:8443", "a b:8443", "[a:1", "",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_with_an_example(
    tmp_path: Path, authority: Signed, text: str
) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    *_, last = check_server(text, tmp_path / "ca.crt")
    assert (last.topic, last.verdict) == ("address", "problem")
    assert "port" in last.sentence.lower()


@pytest.mark.parametrize(
    ("text", "address"),
    [("a.b:1", ("a.b", 1)), ("10.0.0.7:8443", ("10.0.0.7", 8443)), ("[::1]:8443", ("::1", 8443))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert read_address(text) == address


def test_a_closed_port_and_an_unknown_name_and_silence_are_told_apart(
    tmp_path: Path, authority: Signed
) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = {f.topic: f for f in check_server(f"127.0.0.1:{port}", tmp_path / "ca.crt")}
    assert "nothing listens" in found["address"].sentence
    assert found["certificate"].verdict == "note", "it could not be looked at"
    assert "DNS" in judge_address("x:1", socket.gaierror(-2, "unknown")).sentence
    assert "firewall" in judge_address("x:1", TimeoutError()).remedy
    assert judge_address("x:1", OSError("no route")).verdict == "problem"


def test_the_checks_connect_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tunnel() as proxy, socket.create_server(("127.0.0.1", 0)) as server:
        port = proxy.server_address[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{port}")
        address = ("fl.example.org", server.getsockname()[1])
        with open_connection(address) as channel:
            channel.sendall(b"hello")
            with server.accept()[0] as accepted:
                assert accepted.recv(5) == b"hello"
        assert b"Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in proxy.heads[0]
        (note,) = judge_proxy("fl.example.org", proxy_url("fl.example.org"))
        assert note.verdict == "note"
        assert f"through 127.0.0.1:{port}" in note.sentence
        assert "secret" not in note.sentence
        assert "NO_PROXY=fl.example.org" in note.remedy
        monkeypatch.setenv("NO_PROXY", "fl.example.org")
        assert not list(judge_proxy("fl.example.org", proxy_url("fl.example.org")))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:{closed}", "the proxy 127.0.0.1:{closed} of HTTPS_PROXY did not"),
        ("http://127.0.0.1:{port}", "the proxy 127.0.0.1:{port} of HTTPS_PROXY did not"),
        ("socks5://127.0.0.1:{port}", "is not an http:// proxy"),
    ],
)
def test_a_proxy_that_does_not_connect_is_refused_by_name(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunnel(403) as proxy, socket.create_server(("127.0.0.1", 0)) as listener:
        ports = {"port": proxy.server_address[1], "closed": listener.getsockname()[1]}
        listener.close()
        monkeypatch.setenv("HTTPS_PROXY", url.format(**ports))
        error = connection_error(("fl.example.org", 443))
        finding = judge_address("fl.example.org:443", error)
    assert finding.verdict == "problem"
    assert words.format(**ports) in finding.sentence


def test_openssl_rejects_what_a_certificate_without_basic_constraints_signed(
    tmp_path: Path, authority: Signed
) -> None:
    """So `is_authority` refuses it, although OpenSSL takes it as a server's own certificate."""
    signer = sign("s", names=LOCAL, constrained=False)
    assert not is_authority(signer.certificate)
    assert is_authority(authority.certificate)
    context = tls_probe.tls_context([signer.certificate])
    with (
        tls(tmp_path, sign("signed", signer, LOCAL), http()) as address,
        pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"),
    ):
        tls_probe.connect_tls(read_address(address), context)


def test_the_clock_is_asked_of_a_trusted_server_only(tmp_path: Path, authority: Signed) -> None:
    server, ca = sign("s", authority, LOCAL), tmp_path / "ca.crt"
    ca.write_bytes(authority.pem)
    with tls(tmp_path, server, http(off=100)) as address:
        ahead = tls_probe.clock_ahead(address, ca)
        assert ahead is not None
        assert ahead == pytest.approx(100, abs=2)
        ca.write_bytes(sign("other").pem)
        assert tls_probe.clock_ahead(address, ca) is None
