"""One BLAS thread: for matrices this small, threads that wait for a busy core cost more."""

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield
