"""Checks of processes that other programs started and that may end at any moment."""

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is running and is not a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
