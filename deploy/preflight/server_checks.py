"""Is it the federation's server that answers, and do the clocks agree? Pure judges, but one."""

import socket
import ssl
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from common.errors import DeployError
from deploy.federation.superlink_client import read_address
from deploy.preflight.findings import Finding
from deploy.preflight.tls_probe import (
    HEALTH,
    PATIENCE_SECONDS,
    HealthResponse,
    ServerCertificate,
    certificate_of,
    connect_tls,
    connection_error,
    get_health,
    is_authority,
    tls_context,
)

SOON_DAYS = 30
LARGEST_CA = 2**20  # bytes
# What Flower's SuperLink accepts of a signature's time stamp, by its own clock.
MOST_AHEAD, MOST_BEHIND = 5.0, 305.0
NOTED_AHEAD, NOTED_BEHIND = 2.0, 60.0


def check_server(superlink: str, ca: Path) -> Iterator[Finding]:
    """Yield what there is to say about CA file, address, certificate, server and clock."""
    now = datetime.now(UTC)
    authority, finding = read_ca(ca, now)
    yield finding
    try:
        address = read_address(superlink)
    except DeployError as error:
        yield Finding("address", "problem", str(error), "ask the operator for the address")
        return
    yield from judge_proxy(address[0], urllib.request.getproxies())
    failure = connection_error(address)
    yield judge_address(superlink, failure)
    if failure or not authority:
        why = "the server cannot be reached" if failure else f"{ca} cannot be used"
        yield not_checked("certificate", why)
        return
    try:
        with connect_tls(address, tls_context(authority)) as tls:
            yield judge_certificate(address[0], certificate_of(tls), None, now)
            yield from judge_answer(superlink, get_health(tls, address, trusted=True))
    except ssl.SSLCertVerificationError as error:
        with suppress(OSError), connect_tls(address, None) as tls:
            yield judge_certificate(address[0], certificate_of(tls), error, now)
            yield from judge_answer(superlink, get_health(tls, address, trusted=False))
    except OSError as error:
        yield judge_handshake(superlink, error)


def judge_address(superlink: str, failure: Exception | None) -> Finding:
    """Judge how a TCP connection went; None is well."""
    if failure is None:
        return Finding("address", "ok", f"{superlink} can be reached")
    for kind, said, remedy in UNREACHED:
        if isinstance(failure, kind):
            return Finding("address", "problem", f"{superlink}: {said}", remedy)
    remedy = "check this machine's network"
    return Finding("address", "problem", f"{superlink} cannot be reached: {failure}", remedy)


UNREACHED: tuple[tuple[type[Exception], str, str], ...] = (
    (
        socket.gaierror,
        "this name is not known to this machine's DNS",
        "check the spelling; getent hosts NAME should print an address (else: /etc/hosts)",
    ),
    (UnicodeError, "this cannot be the name of a machine", "check the spelling"),
    (
        ConnectionRefusedError,
        "the machine answers, but nothing listens at this port",
        "ask the operator whether the server runs, and for the port",
    ),
    (
        TimeoutError,
        f"no answer within {PATIENCE_SECONDS:g} s",
        "a firewall on the way, or the server is down: ask the operator and your network's keeper",
    ),
)


def judge_proxy(host: str, proxies: Mapping[str, str]) -> Iterator[Finding]:
    """Note a proxy of the environment, which the node uses and these checks do not."""
    proxy = proxies.get("https") or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(host):
        sentence = f"HTTPS_PROXY is set: the node will reach {host} through it, these checks do not"
        yield Finding("address", "note", sentence, f"for a direct way, set NO_PROXY={host}")


def read_ca(path: Path, now: datetime) -> tuple[Sequence[x509.Certificate], Finding]:
    """Return the certificates in the file given as the CA's, none if it will not do, and why."""
    ask_for = "ask the operator for ca.crt, the certificate of the federation's CA"

    def refused(said: str, remedy: str = ask_for) -> tuple[Sequence[x509.Certificate], Finding]:
        return (), Finding("ca file", "problem", said, remedy)

    if path.exists() and not path.is_file():
        return refused(f"{path} is no file")
    try:
        with path.open("rb") as file:
            pem = file.read(LARGEST_CA)
    except OSError as error:
        return refused(f"{path} cannot be read: {error.strerror}")
    if b"PRIVATE KEY" in pem:
        remedy = f"delete it here, tell the operator that it got out, and {ask_for}"
        return refused(f"{path} is a PRIVATE KEY, which belongs on no other machine", remedy)
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return refused(f"{path} is not a certificate in PEM format (-----BEGIN CERTIFICATE-----)")
    signers = [each for each in found if is_authority(each)]
    if not signers:
        return refused(f"{path} is the certificate of a server, not of a CA")
    last = max(signers, key=lambda each: each.not_valid_after_utc)
    if last.not_valid_after_utc < now:
        sentence = f"the CA in {path} expired on {_day(last.not_valid_after_utc)}"
        return refused(sentence, f"{_clock_hint(now)}; else {ask_for}")
    until = f"valid until {_day(last.not_valid_after_utc)}"
    return found, Finding("ca file", "ok", f"{path}: {last.subject.rfc4514_string()}, {until}")


def judge_certificate(
    host: str, shown: ServerCertificate, error: ssl.SSLCertVerificationError | None, now: datetime
) -> Finding:
    """Judge a server's certificate and what OpenSSL found wrong with it (None is nothing)."""
    if error is None:
        days = (shown.ends - now).days
        sentence = f"the server is {host} and belongs to this CA; {days} days left"
        if days >= SOON_DAYS:
            return Finding("certificate", "ok", sentence)
        remedy = "tell the operator to renew it: fedkeel pki renew"
        return Finding("certificate", "note", sentence, remedy)
    renew = f"{_clock_hint(now)}; else the operator runs: fedkeel pki renew"
    stranger = "ask the operator for this federation's ca.crt; until then do not connect"
    foreign = (f"is not from this CA: it was issued by {shown.issuer}", stranger)
    has = ", ".join(shown.names) or "no name at all"
    other = (
        f"is not for {host}; it is for: {has}",
        f"use one of these names, or the operator runs: fedkeel pki renew --host {host}",
    )
    said, remedy = {  # by OpenSSL's X509_V_ERR_ numbers
        2: foreign,
        9: (f"is not valid before {_day(shown.begins)}", renew),
        10: (f"expired on {_day(shown.ends)}", renew),
        18: foreign,
        19: foreign,
        20: foreign,
        21: foreign,
        62: other,
        64: other,
    }.get(error.verify_code, (f"does not pass: {error.verify_message}", stranger))
    return Finding("certificate", "problem", f"the server's certificate {said}", remedy)


def judge_handshake(superlink: str, error: OSError) -> Finding:
    """Judge a handshake that failed for another reason than the certificate."""
    if isinstance(error, TimeoutError):
        said = f"{superlink} takes the connection and then says nothing for {PATIENCE_SECONDS:g} s"
    elif isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
        said = f"{superlink} does not speak TLS"
    elif isinstance(error, ssl.SSLError):
        said = f"the TLS handshake with {superlink} failed: {error.reason or error}"
    else:
        said = f"{superlink} broke off the TLS handshake: {error.strerror or error}"
    return Finding("certificate", "problem", said, "check the port with the operator")


NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def judge_answer(superlink: str, answer: HealthResponse | None) -> Iterator[Finding]:
    """Judge the answer to GET /health, and the clock by its date."""
    if answer is None:
        sentence = f"{superlink} speaks TLS but answers GET {HEALTH} with no HTTP"
        yield Finding("server", "problem", sentence, "check the port with the operator")
        return
    if answer.trusted and answer.status == 200:
        yield Finding("server", "ok", f"{superlink} answers GET {HEALTH}")
    elif answer.trusted:
        behind = answer.status in (502, 503, 504)
        who = (
            "the proxy answers, the SuperLink behind it does not"
            if behind
            else ("something else than a SuperLink answers")
        )
        sentence = f"{who}: GET {HEALTH} gives status {answer.status} (server: {answer.server})"
        yield Finding("server", "problem", sentence, "ask the operator whether the server runs")
    if answer.ahead is None:
        yield not_checked("clock", "the server's answer has no date")
    else:
        yield judge_clock(answer.ahead)


def judge_clock(ahead: float) -> Finding:
    """Judge the seconds that this machine's clock is ahead of the server's."""
    way = "ahead of" if ahead > 0 else "behind"
    sentence = f"this machine's clock is {abs(ahead):.0f} s {way} the server's ({ahead:+.0f} s)"
    remedy = "set the time by NTP: timedatectl set-ntp true, then timedatectl timesync-status"
    if not -MOST_BEHIND < ahead < MOST_AHEAD:
        limits = f"accepted are {-MOST_BEHIND:+.0f} to {MOST_AHEAD:+.0f} s"
        return Finding("clock", "problem", f"{sentence}; {limits}", remedy)
    if not -NOTED_BEHIND < ahead < NOTED_AHEAD:
        return Finding("clock", "note", sentence, remedy)
    return Finding("clock", "ok", f"this machine's clock agrees with the server's ({ahead:+.1f} s)")


def not_checked(topic: str, why: str) -> Finding:
    """Return the finding about something that another finding keeps from being looked at."""
    return Finding(topic, "note", f"cannot be told: {why}")


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _clock_hint(now: datetime) -> str:
    return f"this machine's clock says {_day(now)}: if that is wrong, set it (timedatectl)"
