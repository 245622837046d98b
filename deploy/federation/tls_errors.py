"""Explain why a connection to the server failed, and how to fix it."""

import socket
import ssl
from datetime import datetime
from typing import NamedTuple

from cryptography import x509

from deploy.federation.certificates import names_in

# OpenSSL's error codes of certificate verification (x509_vfy.h).
OTHER_AUTHORITY = (2, 18, 19, 20, 21)
NOT_YET_VALID, EXPIRED = 9, 10
OTHER_NAME = (62, 64)
NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
ASK_FOR_PORT = "check the port with the operator"


class Explanation(NamedTuple):
    """A problem and its remedy, in words."""

    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}"


def explain_no_connection(address: str, error: Exception, seconds: float) -> Explanation:
    """Explain why there is no TCP connection.

    Args:
        address: HOST:PORT of the server.
        error: An OSError, or the UnicodeError of an impossible host name.
        seconds: Timeout of the attempt in seconds.
    """
    if isinstance(error, socket.gaierror):
        return Explanation(
            f"{address}: this name is not known to this machine's DNS",
            "check the spelling; getent hosts NAME should print an address (else: /etc/hosts)",
        )
    if isinstance(error, UnicodeError):
        return Explanation(f"{address}: this cannot be the name of a machine", "check the spelling")
    if isinstance(error, ConnectionRefusedError):
        return Explanation(
            f"{address}: the machine answers, but nothing listens at this port",
            "ask the operator whether the server runs, and for the port",
        )
    if isinstance(error, TimeoutError):
        return Explanation(
            f"{address}: no answer within {seconds:g} s",
            "either a firewall blocks the way or the server is down: ask the operator and the "
            "administrator of your network",
        )
    reason = getattr(error, "strerror", None) or error
    return Explanation(f"{address} cannot be reached: {reason}", "check this machine's network")


def explain_handshake(address: str, error: Exception, seconds: float) -> Explanation:
    """Explain why the TLS handshake failed for another reason than the certificate.

    Args:
        address: HOST:PORT of the server.
        error: An OSError, usually an ssl.SSLError.
        seconds: Timeout of the attempt in seconds.
    """
    if isinstance(error, TimeoutError):
        sentence = f"{address} accepts the connection, but says nothing within {seconds:g} s"
    elif isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
        sentence = f"{address} does not speak TLS"
    elif isinstance(error, ssl.SSLError):
        sentence = f"the TLS handshake with {address} failed: {error.reason or error}"
    else:
        reason = getattr(error, "strerror", None) or error
        sentence = f"{address} broke off the TLS handshake: {reason}"
    return Explanation(sentence, ASK_FOR_PORT)


def explain_certificate(
    host: str,
    error: ssl.SSLCertVerificationError,
    ca: str,
    now: datetime,
    certificate: x509.Certificate | None = None,
) -> Explanation:
    """Explain why the server's certificate is not trusted.

    Args:
        host: Host name or IP address of the connection.
        error: OpenSSL's error.
        ca: The trusted CA, in words: "this CA", "the CA in FILE".
        now: Time of this machine's clock.
        certificate: The server's certificate, if known.
    """
    stranger = "ask the operator for this federation's ca.crt; until then do not connect"
    renew = f"{clock_hint(now)}; else the operator runs: fedkeel pki renew"
    code = error.verify_code
    if code in OTHER_AUTHORITY:
        by = f": it was issued by {certificate.issuer.rfc4514_string()}" if certificate else ""
        problem, remedy = f"is not from {ca}{by}", stranger
    elif code == NOT_YET_VALID:
        since = f"before {day(certificate.not_valid_before_utc)}" if certificate else "yet"
        problem, remedy = f"is not valid {since}", renew
    elif code == EXPIRED:
        on = f" on {day(certificate.not_valid_after_utc)}" if certificate else ""
        problem, remedy = f"expired{on}", renew
    elif code in OTHER_NAME:
        names = ", ".join(names_in(certificate)) if certificate else ""
        has = f"; it is for: {names or 'no name at all'}" if certificate else ""
        problem = f"is not for {host}{has}"
        remedy = f"use one of its names, or the operator runs: fedkeel pki renew --host {host}"
    else:
        problem, remedy = f"does not pass: {error.verify_message}", stranger
    return Explanation(f"the server's certificate {problem}", remedy)


def day(moment: datetime) -> str:
    """Return a date and time as text."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def clock_hint(now: datetime) -> str:
    """Return the time of this machine's clock, with the command that sets it."""
    return f"this machine's clock says {day(now)}: if that is wrong, set it (timedatectl)"
