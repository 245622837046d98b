"""How the long vectors share the cores: one thread for each product, a span of columns for each."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

SPAN = 2**18  # columns that one thread works on before it takes others
FEW = 2**22  # columns that one thread is through with before others would have begun
T = TypeVar("T")


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_spans(size: int, work: Callable[[slice], T]) -> list[T]:
    """Return what `work` makes of each span of `size` columns, in their order, on all cores.

    Where spans begin and end depends on the size alone, so whatever is added up in the order of
    the results has the same bits on any number of cores.
    """
    spans = [slice(start, min(start + SPAN, size)) for start in range(0, size, SPAN)]
    workers = 1 if size < FEW else min(usable_cores(), len(spans))
    if workers < 2:
        return [work(span) for span in spans]
    with ThreadPoolExecutor(workers, thread_name_prefix="span") as pool:
        return list(pool.map(work, spans))


def blocks(span: slice, width: int) -> list[slice]:
    """Cut a span into blocks of `width` columns, the last of which may have fewer."""
    edges = range(span.start, span.stop, width)
    return [slice(start, min(start + width, span.stop)) for start in edges]


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through the loaded libraries once


def one_blas_thread() -> AbstractContextManager[object]:
    """Keep numpy's BLAS to one thread for a while.

    The products here are many and small: several threads lose more by waiting for each other than
    they win (up to twenty times on a machine that is busy otherwise), and with one the bits of a
    result do not depend on the number of cores.
    """
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit
