"""Processes looked at from outside, which may end at any moment."""

import psutil


def lives(pid: int) -> bool:
    """Whether a process runs, and is not a zombie that has ended already."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
