"""What a client process of a real node does about itself: it ends when it hangs, it says how long
it took to start.

Flower gives a node one message at a time, and a ClientApp that hangs blocks its node for good. In
deployment every message has a process of its own, so that ending it is safe; in simulation and in
one process with others it would not be. The node config's "watchdog" tells which it is.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Self

logger = logging.getLogger("flwr")
WATCHDOG = "watchdog"
MARGIN_SECONDS = 5.0  # past the server's deadline
HUNG = 75  # exit code


class Watchdog:
    """Ends this process when nobody waits for its reply any more."""

    def __init__(self, seconds: float | None) -> None:
        self.on = seconds is not None
        if seconds is not None:
            self._timer = threading.Timer(seconds, _end, (seconds,))
            self._timer.daemon = True
            self._timer.start()

    @classmethod
    def of(cls, node_config: Mapping[str, Any], patience: float | None) -> Self:
        """Return the guard of one message; it sleeps unless the process is this client's own.

        Args:
            node_config: what the node was started with.
            patience: seconds that the server waits, None if it does not say.
        """
        if patience is None or not node_config.get(WATCHDOG):
            return cls(None)
        return cls(patience + MARGIN_SECONDS)

    def cancel(self) -> None:
        """The reply is ready."""
        if self.on:
            self._timer.cancel()


def _end(seconds: float) -> None:
    logger.critical(
        "no reply within %.0f s; the server waits no longer: this process ends", seconds
    )
    for handler in logger.handlers:
        handler.flush()
    os._exit(HUNG)


def seconds_since_start() -> float:
    """Return how long ago this process was started."""
    import psutil

    begun: float = psutil.Process().create_time()
    return max(0.0, time.time() - begun)
