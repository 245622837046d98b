"""End a client process that hangs, and measure how long a client process took to start.

Flower sends a node one message at a time, so a ClientApp that hangs blocks its node forever. In a
deployment every message has its own process, and ending that process is safe. In simulation it is
not. The key "watchdog" of the node config tells them apart.
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
    """Ends this process when the server no longer waits for its reply."""

    def __init__(self, seconds: float | None) -> None:
        self.on = seconds is not None
        if seconds is not None:
            self._timer = threading.Timer(seconds, _end, (seconds,))
            self._timer.daemon = True
            self._timer.start()

    @classmethod
    def of(cls, node_config: Mapping[str, Any], timeout: float | None) -> Self:
        """Return the watchdog of one message. It is off if other clients share the process.

        Args:
            node_config: the config that the node was started with.
            timeout: seconds that the server waits, None if unknown.
        """
        if timeout is None or not node_config.get(WATCHDOG):
            return cls(None)
        return cls(timeout + MARGIN_SECONDS)

    def cancel(self) -> None:
        """Stop the watchdog, because the reply is ready."""
        if self.on:
            self._timer.cancel()


def _end(seconds: float) -> None:
    logger.critical(
        "no reply within %.0f s: the server no longer waits, so this process ends", seconds
    )
    for handler in logger.handlers:
        handler.flush()
    os._exit(HUNG)


def seconds_since_start() -> float:
    """Return the seconds since this process was started."""
    import psutil

    started: float = psutil.Process().create_time()
    return max(0.0, time.time() - started)
