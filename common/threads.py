"""How many threads the linear algebra uses."""

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


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
