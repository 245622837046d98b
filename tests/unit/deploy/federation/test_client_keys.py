"""Promises of the keys that clients are known by."""

import os
import stat
import subprocess
from pathlib import Path
from shutil import which

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat

from common.errors import DeployError
from deploy.federation.client_keys import (
    check_private,
    client_name,
    fingerprint_of,
    make_key,
    public_line,
    read_public,
)

# Made with `ssh-keygen -t ecdsa -b 384`; the fingerprint is what `ssh-keygen -lf` says of it.
LINE = (
    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBBnG+Wwz3eJ1sZcTFObrqs"
    "sqmvS1NPX4RfP0gm2fyijld6idQZZ1mhme5+n+WBYp9d8eMFz1dfoqQpjtgbOod8zRVZsF4eUhdCFOschTcSO5pv/tuCnc"
    "UdjGMvfGH7Oryg== alice"
)
FINGERPRINT = "SHA256:kjIbnz8NMcMBTmy6ceJZVbEX0fQ1xkbo33ccSyi9EOg"

needs_ssh_keygen = pytest.mark.skipif(not which("ssh-keygen"), reason="there is no ssh-keygen here")


def ssh_keygen(*arguments: str | Path) -> str:
    done = subprocess.run(["ssh-keygen", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_a_key_is_its_owner_s_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_key(tmp_path / "alice")
    finally:
        os.umask(before)
    assert mode(tmp_path / "alice") == 0o600
    assert mode(tmp_path / "alice.pub") == 0o644


def test_making_a_key_again_changes_nothing(tmp_path: Path) -> None:
    first = make_key(tmp_path / "new" / "alice")
    before = {file: file.read_bytes() for file in (tmp_path / "new").iterdir()}
    assert make_key(tmp_path / "new" / "alice") == first
    assert {file: file.read_bytes() for file in (tmp_path / "new").iterdir()} == before
    assert sorted(file.name for file in before) == ["alice", "alice.pub"]
    assert mode(tmp_path / "new") == 0o700


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_key(tmp_path / "alice")
    assert mode(tmp_path) == 0o755


def test_a_lost_public_half_is_made_again_and_a_foreign_one_refused(tmp_path: Path) -> None:
    key = make_key(tmp_path / "alice")
    (tmp_path / "alice.pub").unlink()
    assert make_key(tmp_path / "alice") == key
    assert (tmp_path / "alice.pub").read_text() == f"{key.line}\n"
    (tmp_path / "alice.pub").write_text(LINE)
    with pytest.raises(DeployError, match=r"alice\.pub is not the public key"):
        make_key(tmp_path / "alice")
    assert (tmp_path / "alice.pub").read_text() == LINE


def test_the_key_is_what_ssh_keygen_makes_and_reads(tmp_path: Path) -> None:
    key = make_key(tmp_path / "alice")
    loaded = serialization.load_ssh_private_key((tmp_path / "alice").read_bytes(), None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    assert loaded.curve.name == "secp384r1"
    pem = loaded.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert fingerprint_of(pem) == key.fingerprint
    assert read_public(LINE).fingerprint == FINGERPRINT


@needs_ssh_keygen
def test_ssh_keygen_shows_the_same_fingerprint(tmp_path: Path) -> None:
    key = make_key(tmp_path / "alice")
    said = ssh_keygen("-lf", tmp_path / "alice")
    assert said == f"384 {key.fingerprint} alice (ECDSA)\n"


@needs_ssh_keygen
def test_a_key_of_ssh_keygen_is_taken_unless_it_is_locked(tmp_path: Path) -> None:
    for name, word in {"alice": "", "bob": "word"}.items():
        ssh_keygen("-q", "-t", "ecdsa", "-b", "384", "-N", word, "-f", tmp_path / name)
    assert make_key(tmp_path / "alice") == read_public(public_line(tmp_path / "alice"))
    [said] = check_private(tmp_path / "bob")
    assert "locked with a passphrase" in said
    assert f"ssh-keygen -p -N '' -f {tmp_path}/bob" in said


@pytest.mark.parametrize("name", ["a", "0", "site-1", "Edge_2.lab", "x" * 63])
def test_plain_names_are_names(name: str) -> None:
    assert client_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "a b", "a/b", "../a", "a\n", "é", "x" * 64, "a;b", "[red]"]
)
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="cannot be a client's name"):
        client_name(name)
    if "/" not in name and name:
        with pytest.raises(DeployError):
            make_key(tmp_path / name)


@pytest.mark.parametrize(
    ("pasted", "comment"),
    [
        (LINE, "alice"),
        (f"\n  {LINE}\r\n\r\n", "alice"),
        (f"\ufeff# from alice\n{LINE} on her laptop", "alice on her laptop"),
        (LINE.removesuffix(" alice"), ""),
        (LINE.replace(" ", "\t"), "alice"),
    ],
)
def test_a_public_key_is_read_however_it_was_pasted(pasted: str, comment: str) -> None:
    key = read_public(pasted)
    assert (key.fingerprint, key.comment) == (FINGERPRINT, comment)
    assert read_public(key.line) == key


def other(key: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


@pytest.mark.parametrize(
    ("pasted", "said"),
    [
        ("", "got 0 lines"),
        (f"{LINE}\n{LINE}", "got 2 lines"),
        ("\n".join([LINE[:60], LINE[60:120], LINE[120:-6]]), "split into 3 lines"),
        (LINE[:100], "damaged"),
        (LINE.replace("AAAAE2", "AAAAE3"), "damaged"),
        ("hello", "ecdsa-sha2-nistp384 is needed"),
        ("-----BEGIN PUBLIC KEY-----\nMHYw\n-----END PUBLIC KEY-----", "lines"),
        (other(ed25519.Ed25519PrivateKey.generate()), "'ssh-ed25519'; a key of type ecdsa"),
        (other(rsa.generate_private_key(65537, 2048)), "'ssh-rsa'; a key of type ecdsa"),
        (other(ec.generate_private_key(ec.SECP256R1())), "nistp256'; a key of type ecdsa"),
    ],
)
def test_what_is_no_public_key_is_refused_with_what_is_needed(pasted: str, said: str) -> None:
    with pytest.raises(DeployError) as caught:
        read_public(pasted)
    assert said in str(caught.value)


def test_a_private_key_pasted_by_mistake_is_refused_loudly_and_not_repeated(tmp_path: Path) -> None:
    make_key(tmp_path / "alice")
    text = (tmp_path / "alice").read_text()
    with pytest.raises(DeployError, match="THIS IS A PRIVATE KEY") as caught:
        read_public(text)
    assert text.splitlines()[1] not in str(caught.value)


def test_a_good_private_key_has_no_problems(tmp_path: Path) -> None:
    make_key(tmp_path / "alice")
    assert check_private(tmp_path / "alice") == []
    (tmp_path / "alice").chmod(0o400)
    assert check_private(tmp_path / "alice") == []


@pytest.mark.parametrize("wide", [0o640, 0o604, 0o660, 0o700, 0o644])
def test_a_private_key_open_to_others_is_a_problem(tmp_path: Path, wide: int) -> None:
    make_key(tmp_path / "alice")
    (tmp_path / "alice").chmod(wide)
    [said] = check_private(tmp_path / "alice")
    assert f"mode {wide:04o}" in said
    assert "chmod 600" in said
    with pytest.raises(DeployError, match="open to other users"):
        make_key(tmp_path / "alice")


def openssh(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, serialization.NoEncryption())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "there is no key"),
        (b"", "not a private key in OpenSSH's format"),
        (b"hello", "not a private key in OpenSSH's format"),
        (LINE.encode(), "not a private key in OpenSSH's format"),
        (openssh(ec.generate_private_key(ec.SECP256R1())), "another type"),
        (openssh(ed25519.Ed25519PrivateKey.generate()), "another type"),
    ],
)
def test_what_is_no_such_private_key_is_a_problem(
    tmp_path: Path, data: bytes | None, said: str
) -> None:
    path = tmp_path / "alice"
    if data is not None:
        path.write_bytes(data)
        path.chmod(0o600)
    [problem] = check_private(path)
    assert said in problem
    if data is not None:
        with pytest.raises(DeployError):
            make_key(path)
        assert path.read_bytes() == data
    with pytest.raises(DeployError):
        public_line(path)


def test_links_and_folders_are_no_keys(tmp_path: Path) -> None:
    make_key(tmp_path / "alice")
    (tmp_path / "bob").symlink_to(tmp_path / "alice")
    (tmp_path / "carol").mkdir()
    assert "symbolic link" in check_private(tmp_path / "bob")[0]
    assert "a folder" in check_private(tmp_path / "carol")[0]
    with pytest.raises(DeployError, match="symbolic link"):
        make_key(tmp_path / "bob")


def test_the_name_of_a_public_keys_file_is_no_clients_name() -> None:
    with pytest.raises(DeployError, match=r"without \.pub"):
        client_name("ward-a.pub")


def test_half_a_pair_that_was_moved_away_is_named_before_anything_is_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys" / "eve"
    make_key(path)
    path.unlink()
    with pytest.raises(DeployError, match=r"eve.pub exists without its private key .*away too"):
        make_key(path)
    assert not path.exists()
    path.with_name("eve.pub").unlink()
    make_key(path)
