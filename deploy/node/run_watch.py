"""Notice that the run a node works for has ended, so that the work for it can be ended too.

While a ClientApp works, Flower does not tell its SuperNode that the run has ended. The process
would train to the end, and until then the node would take no message of another run.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from deploy.node.supernode_log import NodeLogState

WATCH_SECONDS = 15.0  # between two questions to the server, and before the first one

IsOver = Callable[[int, int], bool]


class RunWatch:
    """Asks the server from time to time whether the run of the message in work has ended."""

    def __init__(self, is_over: IsOver) -> None:
        """Watch nothing yet.

        Args:
            is_over: returns whether the run (second argument) has ended, asked as the node (first
                argument). It may take seconds.
        """
        self._is_over = is_over
        self._asked = 0.0  # monotonic seconds
        self._thread: threading.Thread | None = None
        self._ended: str = ""

    def has_ended(self, state: NodeLogState, now: float) -> bool:
        """Return whether the run that the node works for has ended. It does not wait.

        Args:
            state: what the node's log says.
            now: monotonic time in seconds.
        """
        if not state.busy:
            return False
        if self._ended == state.run:
            return True
        is_due = now - max(self._asked, state.since) >= WATCH_SECONDS
        if is_due and (self._thread is None or not self._thread.is_alive()):
            self._asked = now
            self._thread = threading.Thread(target=self._ask, args=(state,), daemon=True)
            self._thread.start()
        return False

    def _ask(self, state: NodeLogState) -> None:
        if self._is_over(state.node_id, int(state.run)):
            self._ended = state.run


def run_question(superlink: str, ca: Path, key: Path) -> IsOver:
    """Return the function that asks a SuperLink whether a run has ended, with the node's key.

    The function returns False when the server cannot be reached or gives another answer.

    Args:
        superlink: HOST:PORT of the server.
        ca: the CA's certificate.
        key: the node's private key in OpenSSH's format.
    """

    def is_over(node_id: int, run_id: int) -> bool:
        # imported here, because most nodes never ask
        from common.flower_internals import (
            ApiErrorCode,
            FleetHttpClient,
            FlowerError,
            GetRunRequest,
            Node,
            NodeAuthHttpInterceptor,
            RuntimeVersionHttpInterceptor,
        )

        try:
            private = load_ssh_private_key(key.read_bytes(), None)
            if not isinstance(private, EllipticCurvePrivateKey):
                return False  # the node cannot have started with it
            with FleetHttpClient.from_server_address(
                superlink,
                False,
                ca.read_bytes(),
                interceptors=[
                    RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                    NodeAuthHttpInterceptor(private, private.public_key()),
                ],
            ) as client:
                client.GetRun(GetRunRequest(node=Node(node_id=node_id), run_id=run_id))
        except httpx.HTTPStatusError as error:
            answer = FlowerError.from_json(error.response.text)
            return answer is not None and answer.code == ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED
        except (httpx.HTTPError, OSError, ValueError):
            return False
        return False

    return is_over
