"""What the server needs at most is told in parts that can be added up by hand."""

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.client_vectors import ClientVectors
from common.geometry import WORK_MATRICES
from common.geometry.gram import BLOCK_NUMBERS
from common.layout import Layout, Tensor
from common.methods import METHODS
from common.methods.history import History
from common.parallel import one_blas_thread
from server_app.memory_estimate import MODELS, MemoryEstimate
from tests.builders import cohort_of, layout_of_size

ROOT = Path(__file__).parents[3]
PLAIN = Layout((Tensor("weight", (250_000,)),))  # a model of 1 MB
MB = 1_000_000


def test_fedpcd_needs_its_window_the_replies_twice_and_the_model_some_times() -> None:
    needs = MemoryEstimate.of(METHODS["fedpcd"](history=10), PLAIN, clients=1000, asked=5)
    products = 8 * (3 + WORK_MATRICES) * 56**2  # of 55 rows and the mean
    assert needs == MemoryEstimate(55 * MB, 5 * MB, 5 * MB, MODELS * MB, products)
    assert needs.total == (65 + MODELS) * MB + products
    assert str(needs) == "73 MB (55 remembered, 5.0 replies, 5.0 updates, 8.0 models, 0.3 working)"


def test_a_history_never_holds_more_than_all_clients() -> None:
    needs = MemoryEstimate.of(METHODS["fedpcd"](history=10), PLAIN, clients=20, asked=5)
    assert needs.remembered == 20 * MB


def test_what_lies_in_files_needs_no_memory() -> None:
    needs = MemoryEstimate.of(METHODS["fedpcd"](), PLAIN, clients=1000, asked=5, on_disk=True)
    assert needs.remembered == 0
    assert "remembered" not in str(needs)


def test_vectors_of_the_method_s_own_are_there_as_sent_as_they_came_and_as_arrays() -> None:
    plain = MemoryEstimate.of(METHODS["fedavg"](), PLAIN, clients=100, asked=5)
    scaffold = MemoryEstimate.of(METHODS["scaffold"](), PLAIN, clients=100, asked=5)
    assert scaffold.replies == 4 * plain.replies
    assert scaffold.remembered == 102 * MB


def test_buffers_travel_in_double_precision() -> None:
    layout = Layout(PLAIN.tensors, (Tensor("running_mean", (125_000,)),))
    needs = MemoryEstimate.of(METHODS["fedavg"](), layout, clients=100, asked=5)
    assert needs.replies == 10 * MB


def test_many_rows_of_small_models_are_all_about_their_products() -> None:
    needs = MemoryEstimate.of(METHODS["fedpcd"](), layout_of_size(200), clients=10**5, asked=1000)
    assert needs.working > 100 * needs.remembered > 0
    on_disk = MemoryEstimate.of(
        METHODS["fedpcd"](), layout_of_size(200), clients=10**5, asked=1000, on_disk=True
    )
    assert on_disk.working == needs.working


# ---------------------------------------------------------------- many rows, measured

Case = tuple[str, Mapping[str, Any], int, int, int, float]

# method, settings, clients of a round, remembered, weights, what the rows share; and the share of
# the bound that is reached at least, so that it says something
CASES: Mapping[str, tuple[Case, float]] = {
    "few active": (("fedpcd", {}, 272, 2720, 200, 0.17), 0.2),
    "nearly all active": (("fedpcd", {"tau": 1.0}, 91, 910, 1500, 0.0), 0.6),
    "fedfv": (("fedfv", {"tau": 10}, 200, 1800, 200, 0.0), 0.6),
    "fedmgda": (("fedmgda", {}, 700, 0, 200, 0.0), 0.5),
    "fedlf": (("fedlf", {}, 400, 0, 200, 0.0), 0.4),
    "craft": (("craft", {}, 700, 0, 200, 0.0), 0.5),
    "fedpw": (("fedpw", {}, 1500, 0, 200, 0.0), 0.5),
}


def peak_and_bound(
    name: str, settings: Mapping[str, Any], cohort: int, old: int, size: int, shared: float
) -> tuple[int, int, Any]:
    """Bytes of a round beside remembered rows, their bound, and how many rows are active."""
    method, layout = METHODS[name](**settings), layout_of_size(size)
    Path("/proc/self/clear_refs").write_text("5")
    before = of_this_process("VmRSS")
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(cohort + old, size)) + shared).astype(np.float32)
    state = method.init(layout)
    if old:
        names = [f"old{k}" for k in range(old)]
        seen = ClientVectors().put(1, dict(zip(names, rows[cohort:], strict=True)))
        exact = rows[cohort:].astype(np.float64)
        state = History(seen, dict.fromkeys(names, 0.1), exact @ exact.T)
    group = cohort_of(rows[:cohort], round=2, losses=rng.uniform(1, 2, cohort).tolist())
    with one_blas_thread():
        step = method.aggregate(group, state, layout)
    bound = MemoryEstimate.of(method, layout, clients=cohort + old, asked=cohort).total
    return of_this_process("VmHWM") - before, bound, step.report.get("active")


def of_this_process(name: str) -> int:
    """Bytes of its memory."""
    said = Path("/proc/self/status").read_text().partition(f"{name}:")[2]
    return int(said.split()[0]) << 10


@pytest.fixture(scope="module")
def measured() -> Mapping[str, tuple[int, int, Any]]:
    """All cases, one after the other in a process of their own."""
    code = """
import json
from tests.unit.server_app.test_memory_estimate import CASES, peak_and_bound
for case, _ in CASES.values():  # loads the solver
    peak_and_bound(*case[:2], 3, min(case[3], 3), *case[4:])
print(json.dumps({name: peak_and_bound(*case) for name, (case, _) in CASES.items()}))
"""
    asked = [sys.executable, "-c", code]
    gives_back = os.environ | {"MALLOC_MMAP_THRESHOLD_": "100000"}  # what is free, at once
    said = subprocess.run(
        asked, cwd=ROOT, env=gives_back, check=True, capture_output=True, text=True
    ).stdout
    found: Mapping[str, tuple[int, int, Any]] = json.loads(said)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_round_with_many_rows_stays_below_what_was_said(
    name: str, measured: Mapping[str, tuple[int, int, Any]]
) -> None:
    peak, bound, _ = measured[name]
    assert CASES[name][1] * bound < peak <= bound + 8 * BLOCK_NUMBERS


def test_the_measured_rows_are_active_as_named(
    measured: Mapping[str, tuple[int, int, Any]],
) -> None:
    assert 10 < measured["few active"][2] < 200
    assert measured["nearly all active"][2] > 700


@pytest.mark.parametrize("name", METHODS)
def test_no_method_works_with_more_vectors_than_it_says(name: str) -> None:
    m, size = 12, 100_000
    method, layout, rng = METHODS[name](), layout_of_size(size), np.random.default_rng(0)
    state = method.init(layout)
    more = {
        part: np.ones(long, np.float32) for part, long in method.expected_payload(state).items()
    }
    groups = [
        cohort_of(
            rng.normal(size=(m, size)).astype(np.float32), round=r, clients=m, client_payload=more
        )
        for r in (1, 2, 3)
    ]
    tracemalloc.start()
    try:
        for group in groups:
            state = method.aggregate(group, state, layout).state
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    said = method.state_floats(layout, m, m) + method.working_floats(layout, m, m)
    assert peak <= 4 * (said + MODELS * size)
