"""Memory that a step or a round frees is kept for the next one."""

import ctypes
from contextlib import suppress
from functools import cache

# glibc's malloc.h: how much of the heap's end stays when it is free, what is asked for beyond
# what is needed, and the size from which a piece of memory is mapped apart and always given back.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
KEPT = 2**31 - 1
HEAP = 64 << 20  # that of a thread, which would else be given back whole when it is empty
LARGEST = 1 << 30  # beyond, nothing is kept: models and activations are below


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees; return whether its C library can.

    A training step frees its activations, and a round its clients' displacements, and the next one
    needs as much again: returned to the system in between it comes back as tens of thousands of
    page faults, a third of the time of both. What stays is the peak. Only glibc has these
    settings; elsewhere nothing changes.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - is it glibc
        kept = ((TRIM_THRESHOLD, KEPT), (TOP_PAD, HEAP), (MMAP_THRESHOLD, LARGEST))
        return all(libc.mallopt(*option) for option in kept)
    return False
