"""Enroll, list and revoke the clients of a federation.

The SuperLink stores the enrolled clients. FedKeel keeps no copy. Each name has one key, and each
key has one name. A SuperLink never accepts a revoked key again, not even under its old name.
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
    """An enrolled client.

    Args:
        name: The client's name. "" if it was registered with Flower's command and has no name.
        node_id: Flower's id of the client's node.
        status: "online", "offline", or "registered" if it has not connected yet.
        last_seen: Time of its last heartbeat. None if there was none.
        fingerprint: Fingerprint of its key, as `ssh-keygen -l` prints it.
    """

    name: str
    node_id: int
    status: str
    last_seen: datetime | None
    fingerprint: str


def enrolled_clients(superlink: SuperLinkClient) -> list[EnrolledClient]:
    """Return the enrolled clients, sorted by name.

    Raises:
        DeployError: The SuperLink cannot be reached, cannot be trusted, or sends a bad reply.
    """
    return [client for client in _registered_clients(superlink) if client.status != REVOKED]


def enroll(superlink: SuperLinkClient, name: str, key: PublicKey) -> str:
    """Enroll a client and return a message. A client that is enrolled already stays enrolled.

    Args:
        superlink: The federation's SuperLink.
        name: The client's name.
        key: The client's public key.

    Raises:
        DeployError: The name has another key, the key has another name, or the key was revoked.
    """
    client_name(name)
    registered = _registered_clients(superlink)
    for client in registered:
        if client.fingerprint == key.fingerprint and client.status == REVOKED:
            raise DeployError(
                f"this key was enrolled{_as(client.name)} and revoked; a revoked key is never "
                "accepted again. Move the old key away on the client, make a new one there "
                f"(fedkeel key {name}), and enroll the new key"
            )
        if client.fingerprint == key.fingerprint and client.name != name:
            raise DeployError(
                f"this key is enrolled{_as(client.name)} already; use that name, or make "
                "another key for this client"
            )
    for client in registered:
        if client.name == name and client.status != REVOKED:
            if client.fingerprint == key.fingerprint:
                return f'"{name}" is enrolled already with this key ({client.status})'
            raise DeployError(
                f'"{name}" is enrolled with another key ({client.fingerprint}); to replace it, '
                f"first fedkeel revoke {name}, then enroll again"
            )
    with tempfile.TemporaryDirectory(prefix="fedkeel-key-") as folder:
        file = Path(folder) / "client.pub"
        file.write_text(f"{key.line}\n", encoding="utf-8")
        reply = superlink.flwr("supernode", "register", str(file), "--name", name)
    return f'"{name}" is enrolled with {key.fingerprint} (node {reply["node-id"]})'


def check_free(superlink: SuperLinkClient, name: str) -> None:
    """Check that no client is enrolled under a name.

    Raises:
        DeployError: A client is.
    """
    if name in {client.name for client in enrolled_clients(superlink)}:
        raise DeployError(
            f'"{name}" is enrolled already; choose another name, or to replace its key first run '
            f"fedkeel revoke {name}"
        )


def revoke(superlink: SuperLinkClient, name: str) -> str:
    """Revoke a client, connected or not, and return a message.

    Raises:
        DeployError: No client of this name is enrolled.
    """
    enrolled = enrolled_clients(superlink)
    matches = [client for client in enrolled if client.name == name]
    if not matches:
        known = [client.name for client in enrolled if client.name]
        raise DeployError(
            f'no client named "{name}" is enrolled{did_you_mean(name, known)}; '
            "list them: fedkeel clients"
        )
    for client in matches:  # several only if one was registered with Flower's own command
        superlink.flwr("supernode", "unregister", str(client.node_id))
    return (
        f'"{name}" is revoked: it gets no more orders, its replies are rejected, and its key is '
        f"never accepted again. To let it return, enroll {name} with a new key"
    )


def clients_table(enrolled: Sequence[EnrolledClient], now: datetime | None = None) -> Table:
    """Return the enrolled clients as a table with the age of the last heartbeat."""
    now = now or datetime.now(UTC)
    table = Table(header_style="bold")
    for column in ("client", "status", "last seen", "key"):
        table.add_column(column, overflow="fold")
    for client in enrolled:
        style = STYLES.get(client.status, "")
        seen = "never" if client.last_seen is None else _ago(now, client.last_seen)
        status = f"[{style}]{client.status}[/]" if style else client.status
        name = escape(client.name) or f"(no name) {client.node_id}"
        table.add_row(name, status, seen, client.fingerprint)
    return table


def _registered_clients(superlink: SuperLinkClient) -> list[EnrolledClient]:
    return sorted(
        map(_client_of_node, superlink.nodes()), key=lambda client: (client.name, client.node_id)
    )


def _client_of_node(node: dict[str, Any]) -> EnrolledClient:
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
