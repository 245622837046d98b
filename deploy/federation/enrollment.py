"""The roll of a federation: who is enrolled, under which name, with which key.

It is the SuperLink's own; nothing of it is kept elsewhere. One name has one key and one key one
name. A SuperLink never takes a key again that was revoked, not even under its old name.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from common.errors import DeployError, did_you_mean
from deploy.federation.client_keys import PublicKey, client_name, fingerprint_of
from deploy.federation.superlink_client import SuperLinkClient

REVOKED = "unregistered"  # Flower's word
STYLES = {"online": "green", "offline": "yellow", "registered": "blue", REVOKED: "red"}


@dataclass(frozen=True)
class EnrolledClient:
    """A client on the roll.

    Args:
        name: under which it is enrolled; "" if somebody registered it without one.
        node_id: Flower's number for it.
        status: "online", "offline", or "registered" where it has not connected yet.
        last_seen: its last sign of life; None where there was none.
        fingerprint: of its key, as `ssh-keygen -l` shows it.
    """

    name: str
    node_id: int
    status: str
    last_seen: datetime | None
    fingerprint: str


def enrolled_clients(link: SuperLinkClient) -> list[EnrolledClient]:
    """Return who is enrolled, by name.

    Raises:
        DeployError: the SuperLink cannot be reached, trusted or understood.
    """
    return [one for one in _roll(link) if one.status != REVOKED]


def enroll(link: SuperLinkClient, name: str, key: PublicKey) -> str:
    """Enrol a client and return a sentence about it; nothing happens if it is enrolled already.

    Raises:
        DeployError: the name has another key, the key another name, or the key was revoked.
    """
    client_name(name)
    roll = _roll(link)
    for one in roll:
        if one.fingerprint == key.fingerprint and one.status == REVOKED:
            raise DeployError(
                f"this key was enrolled{_as(one.name)} and revoked; a revoked key is never taken "
                f"again: make a new one on the client (fedkeel key {name}, after moving the old "
                "one away) and enrol that"
            )
        if one.fingerprint == key.fingerprint and one.name != name:
            raise DeployError(
                f"this key is enrolled{_as(one.name)} already; a client has one name and a key of "
                "its own"
            )
    for one in roll:
        if one.name == name and one.status != REVOKED:
            if one.fingerprint == key.fingerprint:
                return f'"{name}" is enrolled already with this key ({one.status})'
            raise DeployError(
                f'"{name}" is enrolled with another key ({one.fingerprint}); to replace it, first '
                f"fedkeel revoke {name}, then enrol again"
            )
    with tempfile.TemporaryDirectory(prefix="fedkeel-key-") as folder:
        file = Path(folder) / "client.pub"
        file.write_text(f"{key.line}\n", encoding="utf-8")
        said = link.flwr("supernode", "register", str(file), "--name", name)
    return f'"{name}" is enrolled with {key.fingerprint} (node {said["node-id"]})'


def check_free(link: SuperLinkClient, name: str) -> None:
    """See that nobody is enrolled under a name.

    Raises:
        DeployError: somebody is.
    """
    if name in {one.name for one in enrolled_clients(link)}:
        raise DeployError(
            f'"{name}" is enrolled already; to replace its key, first fedkeel revoke {name}, or '
            "take another name"
        )


def revoke(link: SuperLinkClient, name: str) -> str:
    """Take a client off the roll, whether it is connected or not; return a sentence about it.

    Raises:
        DeployError: nobody of that name is enrolled.
    """
    roll = enrolled_clients(link)
    found = [one for one in roll if one.name == name]
    if not found:
        known = [one.name for one in roll if one.name]
        raise DeployError(
            f'nobody of the name "{name}" is enrolled{did_you_mean(name, known)}; see: '
            "fedkeel clients"
        )
    for one in found:  # more than one only if somebody used Flower's own command
        link.flwr("supernode", "unregister", str(one.node_id))
    return (
        f'"{name}" is revoked: it gets no more work, what it sends is refused, and its key is '
        "never taken again (it can be enrolled anew with a new key)"
    )


def clients_table(enrolled: Sequence[EnrolledClient], now: datetime | None = None) -> Table:
    """Return the roll as a table."""
    now = now or datetime.now(UTC)
    shown = Table(header_style="bold")
    for column in ("client", "status", "last seen", "key"):
        shown.add_column(column, overflow="fold")
    for one in enrolled:
        style = STYLES.get(one.status, "")
        seen = "never" if one.last_seen is None else _ago(now, one.last_seen)
        status = f"[{style}]{one.status}[/]" if style else one.status
        shown.add_row(escape(one.name) or f"(no name) {one.node_id}", status, seen, one.fingerprint)
    return shown


def _roll(link: SuperLinkClient) -> list[EnrolledClient]:
    return sorted(map(_read, link.nodes()), key=lambda one: (one.name, one.node_id))


def _read(node: dict[str, Any]) -> EnrolledClient:
    seen = node["seen"] and datetime.fromisoformat(node["seen"])
    fingerprint = fingerprint_of(node["key"].encode("ascii"))
    return EnrolledClient(node["name"], node["node-id"], node["status"], seen or None, fingerprint)


def _as(name: str) -> str:
    return f' as "{name}"' if name else " without a name"


def _ago(now: datetime, then: datetime) -> str:
    seconds = max(0.0, (now - then).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
