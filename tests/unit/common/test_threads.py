"""Inside, BLAS has one thread; outside, what it had."""

from threadpoolctl import threadpool_info, threadpool_limits

from common.threads import one_blas_thread


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_blas_has_one_thread_inside_and_its_own_number_outside() -> None:
    with threadpool_limits(2, "blas"):
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {2}
