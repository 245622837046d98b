"""Processes known by their numbers alone."""

from contextlib import suppress

import psutil

from deploy.system import processes


def lives(pid: int) -> bool:
    """Whether a process runs, and is not a zombie that has ended already."""
    with suppress(psutil.NoSuchProcess):
        return processes.is_alive(psutil.Process(pid))
    return False
