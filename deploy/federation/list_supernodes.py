"""Ask a SuperLink for its clients, as a process of its own: HOST:PORT [CA], answers in JSON.

`flwr supernode ls` tells neither a client's name nor its key, though the SuperLink sends both;
this is the same question without that loss.
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


def described(node: NodeInfo) -> dict[str, Any]:
    """Return what the SuperLink says of a client; "seen" is the last sign of life, ISO 8601."""
    seen = node.last_deactivated_at or None
    if node.status == "online":
        beat = node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval
        seen = datetime.fromtimestamp(beat, UTC).isoformat()
    return {
        "name": node.name,
        "node-id": node.node_id,
        "status": node.status,
        "seen": seen,
        "unregistered": node.unregistered_at or None,
        "key": node.public_key.decode("ascii"),
    }


def main() -> None:
    """Print every client that was ever registered."""
    address, *ca = sys.argv[1:]
    certificates = Path(ca[0]).read_bytes() if ca else None
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    with ControlHttpClient.from_server_address(
        address, insecure=False, root_certificates=certificates, interceptors=[version]
    ) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    sys.stdout.write(json.dumps({"success": True, "nodes": [*map(described, nodes)]}))
