"""X.509 certificates of the federation's CA and of its server. All keys are EC P-256."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import DeployError
from deploy.system.private_files import read_file

BACKDATED = timedelta(days=1)  # clients' clocks may be behind
LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")

Key = ec.EllipticCurvePrivateKey


def host_name(text: str) -> str:
    """Return a host name or an IP address in the form that certificates use.

    Raises:
        DeployError: The text is neither.
    """
    bare = text.strip().removeprefix("[").removesuffix("]")
    try:
        address = ip_address(bare)
    except ValueError:
        labels = bare.lower().removesuffix(".").split(".")
        plain = len(bare) <= 253 and all(map(LABEL.fullmatch, labels))
        if plain and not labels[-1].isdigit():
            return ".".join(labels)
    else:
        if not address.is_unspecified and "%" not in bare:
            return str(address)
    raise DeployError(
        f"{text!r} is not a host name or an IP address that clients can connect to; use a form "
        "such as fl.example.org or 192.0.2.7, without https://, port, path or wildcard"
    )


def new_key() -> Key:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, serialization.NoEncryption())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def new_authority(key: Key, begin: datetime, end: datetime) -> x509.Certificate:
    """Return the self-signed certificate of a CA that may only sign server certificates."""
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # Unique per CA, so that TLS reports another CA as "unknown authority", not "bad signature".
    name = _name(f"FedKeel authority {key_id.digest.hex()[:8]}")
    return (
        _builder(name, name, key, begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=False, certifies=True), critical=True)
        .add_extension(key_id, critical=False)
        .sign(key, hashes.SHA256())
    )


def new_server(
    key: Key,
    names: Sequence[str],
    authority: x509.Certificate,
    signer: Key,
    begin: datetime,
    end: datetime,
) -> x509.Certificate:
    """Return a server certificate.

    Args:
        key: The server's private key.
        names: Host names and IP addresses of the server.
        authority: The CA's certificate.
        signer: The CA's private key.
        begin: Start of the validity period. It is backdated by one day.
        end: End of the validity period.
    """
    ca_key_id = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_key_id)
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        _builder(_name("FedKeel server"), authority.subject, key, begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=True, certifies=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative, names))), critical=False)
        .add_extension(key_id, critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA256())
    )


def load_key(path: Path) -> Key | None:
    """Return the private key in a file, or None if there is no file.

    Raises:
        DeployError: The file is damaged, or the key is not an EC key.
    """
    data = read_file(path)
    if data is None:
        return None
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeployError(f"{path} is damaged: no private key can be read from it") from error
    if not isinstance(key, Key):
        raise DeployError(f"{path} is not an EC key; all keys of the federation are EC keys")
    return key


def load_certificate(path: Path) -> x509.Certificate | None:
    """Return the certificate in a file, or None if there is no file.

    Raises:
        DeployError: The file is damaged.
    """
    data = read_file(path)
    if data is None:
        return None
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise DeployError(f"{path} is damaged: no certificate can be read from it") from error


def is_key_of(key: Key, certificate: x509.Certificate) -> bool:
    """Return whether a certificate belongs to this key."""
    return key.public_key() == certificate.public_key()


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether a CA signed a certificate. Validity dates are not checked."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether a certificate may sign others.

    Strict reading of RFC 5280, 4.2.1.9: without the extension BasicConstraints it may not.
    OpenSSL accepts a self-signed certificate without it as a server's own certificate, but
    rejects every certificate that it signed. Used as the CA, it would lock out all clients later.
    """
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def names_in(certificate: x509.Certificate) -> list[str]:
    """Return the host names and IP addresses in a certificate."""
    try:
        alternatives = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in alternatives]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool, certifies: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        key_cert_sign=certifies,
        crl_sign=certifies,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(begin - BACKDATED).not_valid_after(end)
