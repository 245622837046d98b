"""Processes looked at from outside, which may end at any moment."""

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs, and is not a zombie that has ended already."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
