"""Client keys, which identify clients: EC P-384 in OpenSSH's format, as ssh-keygen writes it."""

import base64
import hashlib
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat

from common.errors import DeployError
from deploy.system.private_files import (
    PRIVATE,
    PUBLIC,
    folder_lock,
    make_folder,
    read_file,
    write_file,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
TYPE = "ecdsa-sha2-nistp384"
NEEDED = f'a key of type {TYPE} is needed (fedkeel key NAME, or: ssh-keygen -t ecdsa -b 384 -N "")'


@dataclass(frozen=True)
class PublicKey:
    """A client's public key.

    Args:
        body: The key in OpenSSH's base64.
        comment: The text after the key, usually the client's name.
    """

    body: str
    comment: str = ""

    @property
    def line(self) -> str:
        """The line of the `.pub` file: type, key and comment."""
        return " ".join(part for part in (TYPE, self.body, self.comment) if part)

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` prints it: SHA256 and 43 characters."""
        digest = hashlib.sha256(base64.b64decode(self.body)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def client_name(text: str) -> str:
    """Return a client's name if it is valid.

    Raises:
        DeployError: The name is not 1 to 63 letters, digits, dots, hyphens and underscores.
    """
    if text.endswith(".pub"):
        raise DeployError(
            f"{text!r} is the name of a public key file; give the client's name, without .pub"
        )
    if not NAME.fullmatch(text):
        raise DeployError(
            f"{text!r} cannot be a client's name; use 1 to 63 letters (a-z), digits, dots, hyphens "
            "and underscores, and begin with a letter or a digit"
        )
    return text


def make_key(path: Path) -> PublicKey:
    """Return the public half of the private key at `path`. Make both files if they are missing.

    Raises:
        DeployError: The file is not a client key, other users may read it, or the `.pub` file
            does not belong to it.
    """
    client_name(path.name)
    make_folder(path.parent)
    with folder_lock(path.parent):
        public_path = path.with_name(f"{path.name}.pub")
        if read_file(path) is None:
            if read_file(public_path) is not None:
                raise DeployError(
                    f"{public_path} exists without its private key {path}; restore the private "
                    "key, or move the public key away too to get a new pair"
                )
            key = ec.generate_private_key(ec.SECP384R1())
            data = key.private_bytes(
                Encoding.PEM, PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
            write_file(path, data, PRIVATE)
        if problems := check_private(path):
            raise DeployError("; ".join(problems))
        public = read_public(public_line(path))
        text = read_file(public_path)
        if text is None:
            write_file(public_path, f"{public.line}\n".encode(), PUBLIC)
        elif read_public(text.decode(errors="replace")).body != public.body:
            raise DeployError(
                f"{public_path} is not the public key of {path}; remove it and run this again"
            )
    return public


def public_line(path: Path) -> str:
    """Return the public half of a private key as one line, with the file's name as comment.

    Raises:
        DeployError: The file is not a client's private key.
    """
    return f"{_encoded(_load(path).public_key())} {path.name}"


def check_private(path: Path) -> list[str]:
    """Return the problems of a private key file, one sentence each."""
    try:
        _load(path)
    except DeployError as error:
        return [str(error)]
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o177:
        return [f"{path} is open to other users (mode {mode:04o}); run: chmod 600 {path}"]
    return []


def read_public(text: str) -> PublicKey:
    """Return the public key in a text that a person may have copied by hand.

    Raises:
        DeployError: The text is a private key, several keys, or a key of another type.
    """
    if "PRIVATE KEY" in text:
        raise DeployError(
            "THIS IS A PRIVATE KEY, which must never leave its client. It was not used. Send the "
            "line in the .pub file instead. If the private key was sent by mail or chat, replace it"
        )
    lines = [line.strip() for line in text.lstrip("\ufeff").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) > 1 and not any(" " in line for line in lines[1:]):
        raise DeployError(f"the public key is split into {len(lines)} lines; it must be one line")
    if len(lines) != 1:
        raise DeployError(f"expected one public key on one line, got {len(lines)} lines")
    kind, body, comment = [*lines[0].split(maxsplit=2), "", ""][:3]
    if kind != TYPE:
        raise DeployError(f"the public key starts with {kind[:40]!r}; {NEEDED}")
    try:
        key = serialization.load_ssh_public_key(f"{kind} {body}".encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeployError(
            f"the public key is damaged ({error}); copy the whole line of the .pub file"
        ) from error
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return PublicKey(_encoded(key).split()[1], comment)


def fingerprint_of(pem: bytes) -> str:
    """Return the fingerprint of a public key in PEM, the SuperLink's format.

    Raises:
        DeployError: The text is not a public key.
    """
    try:
        key = serialization.load_pem_public_key(pem)
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeployError(f"a public key stored by the SuperLink is damaged: {error}") from error
    return PublicKey(line.split()[1]).fingerprint


def _encoded(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _load(path: Path) -> ec.EllipticCurvePrivateKey:
    data = read_file(path)
    if data is None:
        raise DeployError(f"there is no key at {path}; make one: fedkeel key {path.name}")
    try:
        key = serialization.load_ssh_private_key(data, password=None)
    except TypeError as error:
        raise DeployError(
            f"{path} is locked with a passphrase, but the client starts unattended; remove the "
            f"passphrase: ssh-keygen -p -N '' -f {path}"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeployError(f"{path} is not a private key in OpenSSH's format; {NEEDED}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
        raise DeployError(f"{path} is a key of another type; {NEEDED}")
    return key
