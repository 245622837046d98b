"""Promises of the roll, before a SuperLink of ours that keeps Flower's rules."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from rich.console import Console

from common.errors import DeployError
from deploy.federation.client_keys import PublicKey, read_public
from deploy.federation.enrollment import (
    EnrolledClient,
    clients_table,
    enroll,
    enrolled_clients,
    revoke,
)
from deploy.federation.superlink_client import SuperLinkClient

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@cache
def key(name: str) -> PublicKey:
    """The public key of this name, the same each time."""
    secret = ec.generate_private_key(ec.SECP384R1())
    line = secret.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return read_public(f"{line.decode()} {name}")


def pem(line: str) -> str:
    loaded = serialization.load_ssh_public_key(line.encode())
    return loaded.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@dataclass(frozen=True)
class SuperLink(SuperLinkClient):
    """Keeps nodes as Flower 1.42 does: a key is taken once and never again."""

    address: str = "a:1"
    ca: Path | None = None
    kept: list[dict[str, Any]] = field(default_factory=list)

    def nodes(self, timeout: float = 60.0) -> list[dict[str, Any]]:
        return self.kept

    def flwr(self, *arguments: str, timeout: float = 120.0) -> Any:
        match arguments:
            case ("supernode", "register", file, "--name", name):
                self.add(name, Path(file).read_text())
                return {"success": True, "node-id": self.kept[-1]["node-id"]}
            case ("supernode", "unregister", node):
                [found] = [one for one in self.kept if str(one["node-id"]) == node]
                found.update(status="unregistered", seen=None, unregistered=NOW.isoformat())
                return {"success": True}
        raise AssertionError(arguments)

    def add(self, name: str, line: str, status: str = "registered", seen: str = "") -> None:
        assert pem(line) not in [one["key"] for one in self.kept], "code 23"
        self.kept.append(
            {
                "name": name,
                "node-id": 1000 + len(self.kept),
                "status": status,
                "seen": seen or None,
                "unregistered": None,
                "key": pem(line),
            }
        )


def test_who_is_enrolled_is_on_the_roll_with_name_and_key() -> None:
    link = SuperLink()
    assert key("bob").fingerprint in enroll(link, "bob", key("bob"))
    enroll(link, "alice", key("alice"))
    assert enrolled_clients(link) == [
        EnrolledClient("alice", 1001, "registered", None, key("alice").fingerprint),
        EnrolledClient("bob", 1000, "registered", None, key("bob").fingerprint),
    ]


def test_enrolling_again_with_the_same_key_is_a_success_that_changes_nothing() -> None:
    link = SuperLink()
    enroll(link, "alice", key("alice"))
    assert "enrolled already with this key" in enroll(link, "alice", key("alice"))
    assert len(link.kept) == 1


def test_a_name_has_one_key() -> None:
    link = SuperLink()
    enroll(link, "alice", key("alice"))
    with pytest.raises(DeployError, match=r"another key.*first fedkeel revoke alice"):
        enroll(link, "alice", key("bob"))
    assert len(link.kept) == 1


@pytest.mark.parametrize("name", ["alice", ""])
def test_a_key_has_one_name(name: str) -> None:
    link = SuperLink()
    link.add(name, key("alice").line)
    with pytest.raises(DeployError, match='as "alice" already' if name else "without a name"):
        enroll(link, "bob", key("alice"))
    assert len(link.kept) == 1


def test_what_is_no_name_is_refused_before_the_superlink_is_asked() -> None:
    link = SuperLink()
    with pytest.raises(DeployError, match="cannot be a client's name"):
        enroll(link, "a b", key("alice"))
    assert link.kept == []


def test_who_is_revoked_is_off_the_roll_and_comes_back_with_a_new_key_only() -> None:
    link = SuperLink()
    enroll(link, "alice", key("alice"))
    assert "never accepted again" in revoke(link, "alice")
    assert enrolled_clients(link) == []
    for name in ("alice", "bob"):
        with pytest.raises(DeployError, match='enrolled as "alice" and revoked; a revoked key'):
            enroll(link, name, key("alice"))
    enroll(link, "alice", key("new"))
    [alice] = enrolled_clients(link)
    assert alice.fingerprint == key("new").fingerprint


def test_revoking_who_is_not_enrolled_names_whom_may_be_meant() -> None:
    link = SuperLink()
    enroll(link, "alice", key("alice"))
    with pytest.raises(DeployError, match=r'"alcie" is enrolled .did you mean "alice"'):
        revoke(link, "alcie")
    revoke(link, "alice")
    with pytest.raises(DeployError, match='"alice" is enrolled; list them'):
        revoke(link, "alice")


def test_revoking_a_name_that_was_registered_twice_past_us_shuts_both_out() -> None:
    link = SuperLink()
    link.add("alice", key("alice").line)
    link.add("alice", key("bob").line)
    revoke(link, "alice")
    assert enrolled_clients(link) == []


def test_the_last_sign_of_life_is_a_moment_with_a_zone() -> None:
    link = SuperLink()
    link.add("alice", key("alice").line, "offline", "2029-12-31T23:59:00+00:00")
    assert enrolled_clients(link)[0].last_seen == NOW - timedelta(minutes=1)


@pytest.mark.parametrize(
    ("ago", "said"),
    [
        (timedelta(seconds=12), "12 s ago"),
        (timedelta(minutes=5), "5 min ago"),
        (timedelta(hours=3), "3 h ago"),
        (timedelta(days=9), "9 d ago"),
        (timedelta(seconds=-3), "0 s ago"),
    ],
)
def test_the_table_shows_each_client_in_a_row(ago: timedelta, said: str) -> None:
    one = EnrolledClient("alice", 1, "offline", NOW - ago, "SHA256:abc")
    fresh = EnrolledClient("[red]bob", 2, "registered", None, "SHA256:def")
    out = StringIO()
    Console(file=out, width=120).print(
        clients_table([one, fresh, EnrolledClient("", 7, "odd", None, "x")], NOW)
    )
    rows = [line for line in out.getvalue().splitlines() if "SHA" in line or "(no name)" in line]
    assert all(word in rows[0] for word in ("alice", "offline", said, "SHA256:abc"))
    assert all(word in rows[1] for word in ("[red]bob", "registered", "never"))
    assert "(no name) 7" in rows[2]
