"""Is it the federation's server that answers, and do the clocks agree? Pure judges, but one."""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import SplitResult

from cryptography import x509

from common.errors import DeployError
from deploy.federation.certificates import is_authority
from deploy.federation.superlink_client import read_address
from deploy.federation.tls_errors import (
    clock_hint,
    day,
    explain_certificate,
    explain_handshake,
    explain_no_connection,
)
from deploy.preflight.findings import Finding
from deploy.preflight.tls_probe import (
    HEALTH,
    PATIENCE_SECONDS,
    HealthResponse,
    certificate_of,
    connect_tls,
    connection_error,
    get_health,
    proxy_url,
    tls_context,
)

SOON_DAYS = 30
LARGEST_CA = 2**20  # bytes
# Limits of Flower's SuperLink for the time stamp of a signature, by its own clock.
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
    yield from judge_proxy(address[0], proxy_url(address[0]))
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
        reason = explain_handshake(superlink, error, PATIENCE_SECONDS)
        yield Finding("certificate", "problem", *reason)


def judge_address(superlink: str, failure: Exception | None) -> Finding:
    """Judge the result of a TCP connection. None means that it succeeded."""
    if failure is None:
        return Finding("address", "ok", f"{superlink} can be reached")
    return Finding(
        "address", "problem", *explain_no_connection(superlink, failure, PATIENCE_SECONDS)
    )


def judge_proxy(host: str, proxy: SplitResult | None) -> Iterator[Finding]:
    """Note the proxy of the environment through which the node and these checks connect."""
    if proxy is not None:
        way = f"{proxy.hostname}:{proxy.port or 80}"
        sentence = f"HTTPS_PROXY is set: {host} is reached through {way}"
        remedy = f"to connect directly, set NO_PROXY={host}"
        yield Finding("address", "note", sentence, remedy)


def read_ca(path: Path, now: datetime) -> tuple[Sequence[x509.Certificate], Finding]:
    """Return the CA's certificates in a file, none if it is not usable, and the finding."""
    ask_for = "ask the operator for ca.crt, the certificate of the federation's CA"

    def refused(sentence: str, remedy: str = ask_for) -> tuple[Sequence[x509.Certificate], Finding]:
        return (), Finding("ca file", "problem", sentence, remedy)

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
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return refused(f"{path} is not a certificate in PEM format (-----BEGIN CERTIFICATE-----)")
    signers = [certificate for certificate in certificates if is_authority(certificate)]
    if not signers:
        return refused(f"{path} is not the certificate of a CA (it may sign no other)")
    last = max(signers, key=lambda signer: signer.not_valid_after_utc)
    if last.not_valid_after_utc < now:
        sentence = f"the CA in {path} expired on {day(last.not_valid_after_utc)}"
        return refused(sentence, f"{clock_hint(now)}; else {ask_for}")
    until = f"valid until {day(last.not_valid_after_utc)}"
    return certificates, Finding(
        "ca file", "ok", f"{path}: {last.subject.rfc4514_string()}, {until}"
    )


def judge_certificate(
    host: str,
    certificate: x509.Certificate,
    error: ssl.SSLCertVerificationError | None,
    now: datetime,
) -> Finding:
    """Judge a server's certificate.

    Args:
        host: the name that was dialled.
        certificate: the server's certificate.
        error: the reason why OpenSSL does not trust it, None if it does.
        now: the time of this machine.
    """
    if error is not None:
        reason = explain_certificate(host, error, "this CA", now, certificate)
        return Finding("certificate", "problem", *reason)
    days = (certificate.not_valid_after_utc - now).days
    sentence = f"the server is {host} and belongs to this CA; {days} days left"
    if days >= SOON_DAYS:
        return Finding("certificate", "ok", sentence)
    remedy = "tell the operator to renew it: fedkeel pki renew"
    return Finding("certificate", "note", sentence, remedy)


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
    """Return the finding of a check that an earlier problem prevents."""
    return Finding(topic, "note", f"not checked: {why}")
