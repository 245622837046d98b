"""Keep the memory that a training step or a round frees, for the next one."""

import ctypes
from contextlib import suppress
from functools import cache

# Options of glibc's malloc.h: free memory that stays at the heap's end, extra memory per request,
# and the size from which memory is mapped separately and always returned.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
KEPT = 2**31 - 1
HEAP = 64 << 20  # bytes of a thread's heap, which is otherwise returned when it is empty
LARGEST = 1 << 30  # bytes; larger pieces are returned, models and activations are smaller


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, and return whether its C library can.

    A training step frees its activations, a round frees its clients' displacements, and the next
    one needs as much again. Memory that was returned to the system comes back as tens of thousands
    of page faults, a third of the time of both. The process then stays at its peak. Only glibc has
    these settings. Elsewhere nothing changes.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - raises without glibc
        kept = ((TRIM_THRESHOLD, KEPT), (TOP_PAD, HEAP), (MMAP_THRESHOLD, LARGEST))
        return all(libc.mallopt(*option) for option in kept)
    return False
