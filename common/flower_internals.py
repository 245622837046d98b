"""The names of Flower that are not part of its public interface, in one place.

Flower may move them with any release, so pyproject.toml pins its minor version, and a test names
each one that is missing. Every name is imported on its first use: clients need only a few.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app.message import make_message as make_message
    from flwr.common.constant import HEARTBEAT_PATIENCE as HEARTBEAT_PATIENCE
    from flwr.common.constant import SUPERLINK_NODE_ID as SUPERLINK_NODE_ID
    from flwr.common.constant import ErrorCode as ErrorCode
    from flwr.common.constant import SType as SType
    from flwr.proto.control_pb2 import ListNodesRequest as ListNodesRequest
    from flwr.proto.message_pb2 import (
        ConfirmMessageReceivedRequest as ConfirmMessageReceivedRequest,
    )
    from flwr.proto.node_pb2 import Node as Node
    from flwr.proto.node_pb2 import NodeInfo as NodeInfo
    from flwr.proto.run_pb2 import GetRunRequest as GetRunRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest as PullAppMessagesRequest
    from flwr.server.superlink.fleet.vce import vce_api as vce_api
    from flwr.supercore.control import ControlHttpClient as ControlHttpClient
    from flwr.supercore.error import ApiErrorCode as ApiErrorCode
    from flwr.supercore.error import FlowerError as FlowerError
    from flwr.supercore.inflatable.inflatable_object import get_object_body as get_object_body
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_head_values_from_object_content as get_object_head_values_from_object_content,
    )
    from flwr.supercore.inflatable.inflatable_object import (
        iterate_object_tree as iterate_object_tree,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_pull_object_fn_protobuf as make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError as ObjectPullError
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError as ObjectPushError
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents as inflate_object_from_contents,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_objects as pull_objects
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor as RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.run import Run as Run
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
    from flwr.superlink.grid.http_grid import HttpGrid as HttpGrid
    from flwr.supernode.fleet_http_client import FleetHttpClient as FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import (
        NodeAuthHttpInterceptor as NodeAuthHttpInterceptor,
    )

MODULES = {
    # pulling a reply object by object, see server_app/round/bounded_pull.py
    "PullAppMessagesRequest": "flwr.proto.runtime_pb2",
    "ConfirmMessageReceivedRequest": "flwr.proto.message_pb2",
    "HttpGrid": "flwr.superlink.grid.http_grid",
    "ObjectPullError": "flwr.supercore.inflatable.inflatable_utils",
    "pull_objects": "flwr.supercore.inflatable.inflatable_utils",
    "inflate_object_from_contents": "flwr.supercore.inflatable.inflatable_utils",
    "get_object_body": "flwr.supercore.inflatable.inflatable_object",
    "get_object_head_values_from_object_content": "flwr.supercore.inflatable.inflatable_object",
    "iterate_object_tree": "flwr.supercore.inflatable.inflatable_object",
    "make_pull_object_fn_protobuf": "flwr.supercore.inflatable.inflatable_protobuf_utils",
    "make_message": "flwr.app.message",
    # the meaning of an error reply: a lost node, a failed client
    "ErrorCode": "flwr.common.constant",
    # the one serialisation of an Array: without it a reply could choose another
    "SType": "flwr.common.constant",
    # raised while a reply is still being uploaded
    "ObjectPushError": "flwr.supercore.inflatable.inflatable_utils",
    # the inline engine is a Grid of its own, and a Grid has a run and an identity
    "Run": "flwr.supercore.run",
    "SUPERLINK_NODE_ID": "flwr.common.constant",
    "TaskIdentity": "flwr.supercore.task_identity",
    # the simulation engine's queue of orders, see deploy/engines/handover.py
    "vce_api": "flwr.server.superlink.fleet.vce",
    # names and keys of clients, which `flwr supernode ls` does not print
    "ControlHttpClient": "flwr.supercore.control",
    "HEARTBEAT_PATIENCE": "flwr.common.constant",
    "ListNodesRequest": "flwr.proto.control_pb2",
    "NodeInfo": "flwr.proto.node_pb2",
    "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",
    # a node asks whether a run has ended, see deploy/node/run_watch.py
    "ApiErrorCode": "flwr.supercore.error",
    "FlowerError": "flwr.supercore.error",
    "FleetHttpClient": "flwr.supernode.fleet_http_client",
    "GetRunRequest": "flwr.proto.run_pb2",
    "Node": "flwr.proto.node_pb2",
    "NodeAuthHttpInterceptor": "flwr.supernode.node_auth_http_interceptor",
}


if not TYPE_CHECKING:  # so that a type checker refuses unknown names

    def __getattr__(name: str) -> Any:
        """Import one of the names above.

        Raises:
            AttributeError: this is none of them.
            ImportError: this version of Flower does not have it where it was.
        """
        if name not in MODULES:
            raise AttributeError(f"module {__name__} has no attribute {name!r}")
        module = MODULES[name]
        try:
            found = getattr(import_module(module), name, None)
        except ImportError as error:
            raise ImportError(
                f"Flower has no module {module} any more, which has {name}"
            ) from error
        if found is None:
            found = import_module(f"{module}.{name}")
        globals()[name] = found
        return found
