"""BLAS has one thread where it should, and long vectors are shared out between the cores."""

from threading import Barrier, current_thread

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from common import parallel
from common.parallel import blocks, one_blas_thread


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_blas_has_one_thread_inside_and_its_own_number_outside() -> None:
    with threadpool_limits(2, "blas"):
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_spans_are_worked_on_by_several_threads_and_come_back_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel, "SPAN", 10)
    monkeypatch.setattr(parallel, "FEW", 20)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 3)
    together = Barrier(3, timeout=10)  # breaks unless three are at it at once

    def work(span: slice) -> tuple[int, int]:
        if span.start < 30:
            together.wait()
        return span.start, span.stop

    spans = [(0, 10), (10, 20), (20, 30), (30, 35)]
    assert parallel.map_spans(35, work) == spans
    monkeypatch.setattr(parallel, "usable_cores", lambda: 1)
    together.abort()
    assert parallel.map_spans(35, lambda span: (span.start, span.stop)) == spans


def test_few_columns_start_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 3)
    monkeypatch.setattr(parallel, "SPAN", 10)
    assert set(parallel.map_spans(30, lambda _: current_thread())) == {current_thread()}


def test_blocks_cover_a_span() -> None:
    assert blocks(slice(5, 12), 3) == [slice(5, 8), slice(8, 11), slice(11, 12)]
    assert blocks(slice(5, 5), 3) == []
