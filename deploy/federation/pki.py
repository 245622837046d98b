"""The federation's own certificate authority and its server's certificate.

Four folders, so that each process sees only what it needs: authority/ (signs), server/ (the
SuperLink and the proxy), link/ (the SuperLink and its app process) and public/ (everybody).
Files are made in the order ca.key, ca.crt, public/ca.crt, server.key, server.crt, secret: whoever
is killed in between leaves a beginning of that row, which the next `init` completes.
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

ALWAYS = ("localhost", "127.0.0.1", "::1")  # health checks and Flower itself dial these
DAYS, CA_DAYS = 825, 3650
SECRET = re.compile(rb"[0-9a-f]{64}\n?")


@dataclass(frozen=True)
class CertificateInfo:
    """What a server certificate says.

    Args:
        names: the host names and addresses it is good for.
        expires: when it ends.
        days_left: until then; negative when it is over.
        authority_expires: when its authority ends.
    """

    names: tuple[str, ...]
    expires: datetime
    days_left: float
    authority_expires: datetime


def init(
    home: Path, hosts: Sequence[str], days: int = DAYS, now: datetime | None = None
) -> list[str]:
    """Make what is missing of authority, server certificate and secret.

    Args:
        home: the pki folder.
        hosts: names and addresses by which clients reach the server, beside localhost's.
        days: how long the server's certificate is good, from now on.
        now: the time; the clock's by default.

    Returns:
        What was done, a sentence each.

    Raises:
        DeployError: something that is there is damaged, foreign, or lacks one of the hosts;
            nothing of it is overwritten.
    """
    now, wanted = now or datetime.now(UTC), names_of(hosts)
    _check_days(days)
    with open_pki(home) as (files, said):
        authority = _authority(files, now, said)
        crt = load_certificate(files.crt)
        if crt is None:
            key = load_key(files.key)
            if key is None:
                key = new_key()
                write_file(files.key, key_pem(key), PRIVATE)
            _issue(files, files.crt, key, authority, wanted, now, days, said)
        else:
            _check_pair(files, crt, authority)
            _check_good_for(files, crt, wanted, now)
        secret = read_file(files.secret)
        if secret is None:
            write_file(files.secret, secrets.token_hex(32).encode(), PRIVATE)
            said.append(f"made {files.secret}, shared by the SuperLink and its app process only")
        elif not SECRET.fullmatch(secret):
            raise DeployError(f"{files.secret} is not 64 hex digits; move it away to have it made")
        return said or [f"nothing to do: {_summary(certificate_info(home, now))}"]


def renew(
    home: Path, hosts: Sequence[str], days: int = DAYS, now: datetime | None = None
) -> list[str]:
    """Make a new server key and certificate for the names of the old one and these hosts.

    Both are first written in full beside the old ones, then the key and the certificate take
    their places, one rename each. Killed between these two, a new key stands beside the old
    certificate: a server that runs goes on, one that starts just then refuses them, and the next
    `init` or `renew` puts the certificate in its place.

    Args and errors are those of `init`.
    """
    now, wanted = now or datetime.now(UTC), names_of(hosts)
    _check_days(days)
    with open_pki(home) as (files, said):
        if read_file(files.ca_crt) is None:
            raise DeployError(
                f"there is no authority in {home}; make it first: fedkeel pki init --dir {home}"
            )
        authority = _authority(files, now, said)
        crt = load_certificate(files.crt)
        if crt is not None:
            if load_key(files.key) is not None:  # else it is lost, and a new pair is the remedy
                _check_pair(files, crt, authority)
            wanted = list(dict.fromkeys([*names_in(crt), *wanted]))
        key = new_key()
        write_file(files.next_key, key_pem(key), PRIVATE)
        _issue(files, files.next_crt, key, authority, wanted, now, days, said)
        move_in(files)
        said.append("restart SuperLink and proxy to use it; clients need nothing new")
        return said


def certificate_info(home: Path, now: datetime | None = None) -> CertificateInfo:
    """Return what the server's certificate says; needs the folders server/ and public/ only.

    Raises:
        DeployError: one of the two certificates is missing or damaged, or they do not belong
            together.
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
    """Return localhost's names and these, checked and without repetitions.

    Raises:
        DeployError: one of them is neither a host name nor an address.
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
            raise DeployError(f"{self.path} is missing, which signs certificates; bring it back")
        return self.key


def _authority(files: PkiFiles, now: datetime, said: list[str]) -> _Authority:
    """Return the authority; made, or completed, where something is missing."""
    key, crt = load_key(files.ca_key), load_certificate(files.ca_crt)
    if crt is None:
        for path in (files.public_crt, files.crt):
            if read_file(path) is not None:
                raise DeployError(
                    f"{path} is there, but {files.ca_crt} is missing: bring it back, or start "
                    "anew in an empty folder"
                )
        if key is None:
            key = new_key()
            write_file(files.ca_key, key_pem(key), PRIVATE)
        crt = new_authority(key, now, now + timedelta(days=CA_DAYS))
        write_file(files.ca_crt, certificate_pem(crt), PUBLIC)
        said.append(f"made {files.ca_crt}, an authority until {crt.not_valid_after_utc:%Y-%m-%d}")
    elif key is not None and not is_key_of(key, crt):
        raise DeployError(f"{files.ca_key} is not the key of {files.ca_crt}; bring the right one")
    if not is_authority(crt):
        raise DeployError(f"{files.ca_crt} is not the certificate of an authority")
    if crt.not_valid_after_utc <= now:
        raise DeployError(
            f"{files.ca_crt} has expired: start anew in an empty folder, and give its "
            "public/ca.crt to every client"
        )
    public = load_certificate(files.public_crt)
    if public is None:
        write_file(files.public_crt, certificate_pem(crt), PUBLIC)
        said.append(f"made {files.public_crt}: give it to every client")
    elif public != crt:
        raise DeployError(f"{files.public_crt} is of another authority than {files.ca_crt}")
    return _Authority(crt, key, files.ca_key)


def _issue(
    files: PkiFiles,
    path: Path,
    key: Key,
    authority: _Authority,
    names: Sequence[str],
    now: datetime,
    days: int,
    said: list[str],
) -> None:
    """Write a server certificate for this key; it ends with its authority at the latest."""
    end = min(now + timedelta(days=days), authority.crt.not_valid_after_utc)
    crt = new_server(key, names, authority.crt, authority.signer, now, end)
    write_file(path, certificate_pem(crt), PUBLIC)
    said.append(f"made {files.crt} for {', '.join(names)}, good until {end:%Y-%m-%d}")


def _check_pair(files: PkiFiles, crt: x509.Certificate, authority: _Authority) -> None:
    """Check that the server's key, its certificate and the authority fit."""
    _check_issued(files, crt, authority.crt)
    key = load_key(files.key)
    if key is None:
        raise DeployError(
            f"{files.key} is missing: bring it back, or have both made anew: "
            f"fedkeel pki renew --dir {files.home}"
        )
    if not is_key_of(key, crt):
        raise DeployError(
            f"{files.key} is not the key of {files.crt}; move both away to have them made"
        )


def _check_good_for(
    files: PkiFiles, crt: x509.Certificate, wanted: Sequence[str], now: datetime
) -> None:
    found, again = names_in(crt), f"make a new one: fedkeel pki renew --dir {files.home}"
    if missing := [name for name in wanted if name not in found]:
        hosts = " ".join(f"--host {name}" for name in missing)
        raise DeployError(
            f"{files.crt} is not for {', '.join(missing)}, only for {', '.join(found)}; "
            f"{again} {hosts}"
        )
    if crt.not_valid_after_utc <= now:
        raise DeployError(f"{files.crt} has expired; {again}")


def _check_issued(files: PkiFiles, crt: x509.Certificate, ca: x509.Certificate) -> None:
    if not is_issued_by(crt, ca):
        raise DeployError(
            f"{files.crt} was not made by this federation's authority; move it and its key away "
            "to have them made"
        )


def _check_days(days: int) -> None:
    if not 1 <= days <= CA_DAYS:
        raise DeployError(f"a certificate can be good for 1 to {CA_DAYS} days, not {days}")


def _summary(found: CertificateInfo) -> str:
    return (
        f"the certificate is for {', '.join(found.names)} and good for {found.days_left:.0f} more "
        f"days, until {found.expires:%Y-%m-%d}"
    )
