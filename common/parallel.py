"""Threads for long vectors: each one works on a span of columns."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

SPAN = 2**18  # columns of a thread's task
FEW = 2**22  # fewer columns are faster on one thread
T = TypeVar("T")


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_spans(size: int, work: Callable[[slice], T]) -> list[T]:
    """Return the results of `work` for each span of `size` columns, in order, on all cores.

    The spans depend on the size alone. So a sum over the results in their order has the same bits
    on any number of cores.

    Args:
        size: number of columns.
        work: function of a span of columns.
    """
    spans = [slice(start, min(start + SPAN, size)) for start in range(0, size, SPAN)]
    workers = 1 if size < FEW else min(usable_cores(), len(spans))
    if workers < 2:
        return [work(span) for span in spans]
    with ThreadPoolExecutor(workers, thread_name_prefix="span") as pool:
        return list(pool.map(work, spans))


def blocks(span: slice, width: int) -> list[slice]:
    """Return blocks of `width` columns of a span. The last one can be smaller."""
    edges = range(span.start, span.stop, width)
    return [slice(start, min(start + width, span.stop)) for start in edges]


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # cached, because it searches all loaded libraries


def one_blas_thread() -> AbstractContextManager[object]:
    """Limit numpy's BLAS to one thread inside a `with` block.

    The products here are many and small. Several threads lose more by waiting for each other than
    they gain, up to a factor of 20 on a busy machine. With one thread the bits of a result do not
    depend on the number of cores.
    """
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit
