"""The federation's certificate authority (CA) and server certificate.

Four folders, so that each process sees only the files that it needs: authority/ (signs), server/
(the SuperLink and the proxy), link/ (the SuperLink and its app process) and public/ (everyone).
Files are made in the order ca.key, ca.crt, public/ca.crt, server.key, server.crt, secret. If
`init` is killed, the files so far remain, and the next `init` makes the missing ones.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from common.errors import DeployError
from deploy.federation.certificates import (
    Key,
    certificate_pem,
    host_name,
    is_authority,
    is_issued_by,
    is_key_of,
    key_pem,
    load_certificate,
    load_key,
    names_in,
    new_authority,
    new_key,
    new_server,
)
from deploy.federation.pki_files import PkiFiles, move_in, open_pki
from deploy.system.private_files import PRIVATE, PUBLIC, read_file, write_file

ALWAYS = ("localhost", "127.0.0.1", "::1")  # health checks and Flower connect to these
DAYS, CA_DAYS = 825, 3650
SECRET = re.compile(rb"[0-9a-f]{64}\n?")


@dataclass(frozen=True)
class CertificateInfo:
    """The names and dates of a server certificate.

    Args:
        names: Host names and IP addresses.
        expires: End of its validity.
        days_left: Days until then. Negative if it has expired.
        authority_expires: End of the CA's validity.
    """

    names: tuple[str, ...]
    expires: datetime
    days_left: float
    authority_expires: datetime


def init(
    home: Path, hosts: Sequence[str], days: int = DAYS, now: datetime | None = None
) -> list[str]:
    """Make the CA, the server certificate and the shared secret, where missing.

    Args:
        home: The pki folder.
        hosts: Host names and IP addresses of the server. Localhost's are always added.
        days: Validity of the server certificate in days.
        now: Current time. Default: the clock.

    Returns:
        One message per file that was made.

    Raises:
        DeployError: An existing file is damaged, comes from another CA, or lacks one of the
            hosts. Existing files are never overwritten.
    """
    now, wanted = now or datetime.now(UTC), names_of(hosts)
    _check_days(days)
    with open_pki(home) as (files, messages):
        authority = _authority(files, now, messages)
        crt = load_certificate(files.crt)
        if crt is None:
            key = load_key(files.key)
            if key is None:
                key = new_key()
                write_file(files.key, key_pem(key), PRIVATE)
            _issue(files, files.crt, key, authority, wanted, now, days, messages)
        else:
            _check_pair(files, crt, authority)
            _check_good_for(files, crt, wanted, now)
        secret = read_file(files.secret)
        if secret is None:
            write_file(files.secret, secrets.token_hex(32).encode(), PRIVATE)
            messages.append(f"made {files.secret}, the secret of the SuperLink and its app process")
        elif not SECRET.fullmatch(secret):
            raise DeployError(
                f"{files.secret} is not 64 hex digits; move it away and run this again"
            )
        return messages or [f"nothing to do: {_summary(certificate_info(home, now))}"]


def renew(
    home: Path, hosts: Sequence[str], days: int = DAYS, now: datetime | None = None
) -> list[str]:
    """Make a new server key and certificate for the old names and these hosts.

    Both are first written in full under temporary names. Then two renames replace the key and the
    certificate. If `renew` is killed between the two, the new key does not match the old
    certificate. A running server is not affected, a starting server rejects the pair, and the
    next `init` or `renew` finishes the replacement.

    Args and errors are those of `init`.
    """
    now, wanted = now or datetime.now(UTC), names_of(hosts)
    _check_days(days)
    with open_pki(home) as (files, messages):
        if read_file(files.ca_crt) is None:
            raise DeployError(
                f"there is no CA in {home}; make it first: fedkeel pki init --dir {home}"
            )
        authority = _authority(files, now, messages)
        crt = load_certificate(files.crt)
        if crt is not None:
            if load_key(files.key) is not None:  # a lost key is replaced by the new pair
                _check_pair(files, crt, authority)
            wanted = list(dict.fromkeys([*names_in(crt), *wanted]))
        key = new_key()
        write_file(files.next_key, key_pem(key), PRIVATE)
        _issue(files, files.next_crt, key, authority, wanted, now, days, messages)
        move_in(files)
        messages.append("restart SuperLink and proxy to use it; clients need no new file")
        return messages


def certificate_info(home: Path, now: datetime | None = None) -> CertificateInfo:
    """Return the names and dates of the server certificate. Reads server/ and public/ only.

    Raises:
        DeployError: The server's or the CA's certificate is missing or damaged, or the CA did
            not sign the server's certificate.
    """
    files, now = PkiFiles(home), now or datetime.now(UTC)
    ca, crt = load_certificate(files.public_crt), load_certificate(files.crt)
    if ca is None or crt is None:
        missing = files.public_crt if ca is None else files.crt
        raise DeployError(f"{missing} is missing; make it: fedkeel pki init --dir {home}")
    _check_issued(files, crt, ca)
    left = (crt.not_valid_after_utc - now) / timedelta(days=1)
    return CertificateInfo(
        tuple(names_in(crt)), crt.not_valid_after_utc, left, ca.not_valid_after_utc
    )


def names_of(hosts: Sequence[str]) -> list[str]:
    """Return the names of localhost and these, without duplicates.

    Raises:
        DeployError: One of them is neither a host name nor an IP address.
    """
    return list(dict.fromkeys([*ALWAYS, *map(host_name, hosts)]))


@dataclass(frozen=True)
class _Authority:
    crt: x509.Certificate
    key: Key | None
    path: Path

    @property
    def signer(self) -> Key:
        if self.key is None:
            raise DeployError(
                f"{self.path} is missing, which signs certificates; restore it from a backup"
            )
        return self.key


def _authority(files: PkiFiles, now: datetime, messages: list[str]) -> _Authority:
    """Return the CA. Make its missing files."""
    key, crt = load_key(files.ca_key), load_certificate(files.ca_crt)
    if crt is None:
        for path in (files.public_crt, files.crt):
            if read_file(path) is not None:
                raise DeployError(
                    f"{path} exists, but {files.ca_crt} is missing; restore it from a backup, or "
                    "start again in an empty folder"
                )
        if key is None:
            key = new_key()
            write_file(files.ca_key, key_pem(key), PRIVATE)
        crt = new_authority(key, now, now + timedelta(days=CA_DAYS))
        write_file(files.ca_crt, certificate_pem(crt), PUBLIC)
        messages.append(f"made {files.ca_crt}, a CA valid until {crt.not_valid_after_utc:%Y-%m-%d}")
    elif key is not None and not is_key_of(key, crt):
        raise DeployError(f"{files.ca_key} is not the key of {files.ca_crt}; restore the right key")
    if not is_authority(crt):
        raise DeployError(f"{files.ca_crt} is not the certificate of a CA; restore the right one")
    if crt.not_valid_after_utc <= now:
        raise DeployError(
            f"{files.ca_crt} has expired; start again in an empty folder, and give its "
            "public/ca.crt to every client"
        )
    public = load_certificate(files.public_crt)
    if public is None:
        write_file(files.public_crt, certificate_pem(crt), PUBLIC)
        messages.append(f"made {files.public_crt}; give it to every client")
    elif public != crt:
        raise DeployError(
            f"{files.public_crt} is not a copy of {files.ca_crt}; move it away and run this again"
        )
    return _Authority(crt, key, files.ca_key)


def _issue(
    files: PkiFiles,
    path: Path,
    key: Key,
    authority: _Authority,
    names: Sequence[str],
    now: datetime,
    days: int,
    messages: list[str],
) -> None:
    """Write a server certificate for this key. It expires no later than the CA."""
    end = min(now + timedelta(days=days), authority.crt.not_valid_after_utc)
    crt = new_server(key, names, authority.crt, authority.signer, now, end)
    write_file(path, certificate_pem(crt), PUBLIC)
    messages.append(f"made {files.crt} for {', '.join(names)}, valid until {end:%Y-%m-%d}")


def _check_pair(files: PkiFiles, crt: x509.Certificate, authority: _Authority) -> None:
    """Check that the server's key and the CA belong to the server's certificate."""
    _check_issued(files, crt, authority.crt)
    key = load_key(files.key)
    if key is None:
        raise DeployError(
            f"{files.key} is missing; restore it from a backup, or make a new key and "
            f"certificate: fedkeel pki renew --dir {files.home}"
        )
    if not is_key_of(key, crt):
        raise DeployError(
            f"{files.key} is not the key of {files.crt}; move both away and run this again"
        )


def _check_good_for(
    files: PkiFiles, crt: x509.Certificate, wanted: Sequence[str], now: datetime
) -> None:
    names, remedy = names_in(crt), f"make a new one: fedkeel pki renew --dir {files.home}"
    if missing := [name for name in wanted if name not in names]:
        hosts = " ".join(f"--host {name}" for name in missing)
        raise DeployError(
            f"{files.crt} is not for {', '.join(missing)}, only for {', '.join(names)}; "
            f"{remedy} {hosts}"
        )
    if crt.not_valid_after_utc <= now:
        raise DeployError(f"{files.crt} has expired; {remedy}")


def _check_issued(files: PkiFiles, crt: x509.Certificate, ca: x509.Certificate) -> None:
    if not is_issued_by(crt, ca):
        raise DeployError(
            f"{files.crt} was not signed by this federation's CA; move it and its key away and "
            "run this again"
        )


def _check_days(days: int) -> None:
    if not 1 <= days <= CA_DAYS:
        raise DeployError(f"a certificate can be valid for 1 to {CA_DAYS} days, not {days}")


def _summary(info: CertificateInfo) -> str:
    return (
        f"the certificate is for {', '.join(info.names)} and valid for {info.days_left:.0f} more "
        f"days, until {info.expires:%Y-%m-%d}"
    )
