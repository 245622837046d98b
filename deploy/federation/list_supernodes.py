"""Print the clients of a SuperLink as JSON. Runs as a separate process: HOST:PORT [CA].

`flwr supernode ls` omits the names and keys of clients, although the SuperLink sends both. This
script makes the same request and prints them.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.flower_internals import (
    HEARTBEAT_PATIENCE,
    ControlHttpClient,
    ListNodesRequest,
    NodeInfo,
    RuntimeVersionHttpInterceptor,
)


def node_entry(node: NodeInfo) -> dict[str, Any]:
    """Return a client's entry in the SuperLink. "seen" is its last heartbeat in ISO 8601."""
    seen = node.last_deactivated_at or None
    if node.status == "online":
        heartbeat = node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval
        seen = datetime.fromtimestamp(heartbeat, UTC).isoformat()
    return {
        "name": node.name,
        "node-id": node.node_id,
        "status": node.status,
        "seen": seen,
        "unregistered": node.unregistered_at or None,
        "key": node.public_key.decode("ascii"),
    }


def main() -> None:
    """Print every client that was ever registered, revoked ones included."""
    address, *ca = sys.argv[1:]
    certificates = Path(ca[0]).read_bytes() if ca else None
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    with ControlHttpClient.from_server_address(
        address, insecure=False, root_certificates=certificates, interceptors=[version]
    ) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    sys.stdout.write(json.dumps({"success": True, "nodes": [*map(node_entry, nodes)]}))
