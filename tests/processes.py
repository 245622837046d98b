"""Processes known only by their ids."""

from contextlib import suppress

import psutil

from deploy.system import processes


def lives(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    with suppress(psutil.NoSuchProcess):
        return processes.is_alive(psutil.Process(pid))
    return False
