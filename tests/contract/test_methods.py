"""Properties of every method in `METHODS`. A new row of the table is tested by them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.client_vectors import ClientVectors
from common.layout import Layout
from common.methods import (
    AFL,
    METHODS,
    QFFL,
    FedAvg,
    FedDyn,
    FedFV,
    FedLF,
    FedMGDA,
    FedPCD,
    FedPW,
    Method,
)
from common.methods.base import Granularity
from common.rng import stream
from common.types import ClientUpdate, Cohort
from server_app.run_dir.checkpoint import load_newest, save
from server_app.state.server_state import ServerState, average_buffer, next_state
from tests.builders import (
    LR,
    Quadratic,
    arrays_in,
    assert_same,
    begin,
    bowls,
    drawn,
    layout_of_size,
    local_steps,
    play,
    told,
)
from tests.each import for_each

pytestmark = pytest.mark.usefixtures("flower_identity")

OTHER_SETTINGS: dict[str, Method[Any]] = {  # settings that take another path in the code
    "afl, average": AFL(average=True),
    "feddyn, active": FedDyn(alpha=0.1, evaluate="active"),
    "fedfv, code": FedFV(window="code", tau=3),
    "fedlf, released": FedLF(released=True),
    "fedmgda, rescaled": FedMGDA(epsilon=1.0, rescale=True),
    "fedpcd, primary": FedPCD(primary=False),
    "fedpcd, raw": FedPCD(normalise=False, tau=0.2),
    "fedpw, clean": FedPW(stride=1),
    "qffl, 5": QFFL(q=5.0),
}
ALL = {name: kind() for name, kind in METHODS.items()} | OTHER_SETTINGS
METHOD = pytest.mark.parametrize("method", ALL.values(), ids=ALL)
SHAPES = for_each(
    ("m", "d"), [(1, 1), (1, 7), (9, 1), (9, 3), (5, 40)]
)  # one client, one coordinate, more clients than coordinates
DTYPE = for_each("dtype", [np.float32, np.float64])

Names = Sequence[str]


def sizes(client: str) -> int:
    return 1 + int(client) % 4


def warm(
    method: Method[Any], layout: Layout, clients: int, rounds: int = 3, dtype: Any = np.float64
) -> ServerState[Any]:
    """The state after some rounds in which two thirds of the clients took part."""
    start = begin(method, layout, stream(1, "start").normal(size=layout.size), dtype)
    cohorts = drawn(clients, max(1, 2 * clients // 3), rounds)
    problems = bowls(clients, layout.size)
    return play(method, start, layout, problems, cohorts, examples=sizes)[-1]


def cohort_at(
    method: Method[Any],
    state: ServerState[Any],
    layout: Layout,
    problems: Mapping[str, Quadratic],
    names: Names | None = None,
) -> Cohort:
    """What the clients answer to the state; `names` calls them otherwise."""
    updates = []
    for name, (client, problem) in zip(names or problems, problems.items(), strict=True):
        server_payload = method.server_payload(state.method, name)
        weights, client_payload = local_steps(
            method, server_payload, layout, state.weights, problem.gradient
        )
        delta = state.weights - weights
        metrics = told(client, problem, state.weights)
        updates.append(
            ClientUpdate(
                name,
                sizes(client),
                2,
                2 * LR,
                delta,
                client_payload=client_payload,
                metrics=metrics,
            )
        )
    return Cohort(state.round + 1, LR, len(problems), tuple(updates))


def situation(
    method: Method[Any], m: int, d: int, dtype: Any = np.float64
) -> tuple[Layout, ServerState[Any], Cohort]:
    layout = layout_of_size(d)
    state = warm(method, layout, m, dtype=dtype)
    return layout, state, cohort_at(method, state, layout, bowls(m, d, seed=7))


# ---------------------------------------------------------------- one step


@METHOD
@SHAPES
@DTYPE
def test_direction_is_finite_and_has_the_shape_and_dtype_of_the_updates(
    method: Method[Any], m: int, d: int, dtype: Any
) -> None:
    layout, state, cohort = situation(method, m, d, dtype)
    step = method.aggregate(cohort, state.method, layout)
    assert step.direction.shape == (d,)
    assert step.direction.dtype == dtype
    assert np.isfinite(step.direction).all()
    assert all(np.isfinite(array).all() for array in arrays_in(step.state))


@METHOD
@SHAPES
def test_renaming_clients_changes_the_step_by_rounding_only(
    method: Method[Any], m: int, d: int
) -> None:
    layout, problems = layout_of_size(d), bowls(m, d, seed=7)
    order = [str(k) for k in stream(3, "order", m).permutation(m)]
    state = begin(method, layout, np.ones(d))
    one = method.aggregate(cohort_at(method, state, layout, problems), state.method, layout)
    renamed = cohort_at(method, state, layout, problems, names=order)
    other = method.aggregate(renamed, state.method, layout)
    assert_allclose(other.direction, one.direction, rtol=1e-9, atol=1e-12)


@METHOD
@SHAPES
@DTYPE
def test_order_of_arrival_changes_no_bit(method: Method[Any], m: int, d: int, dtype: Any) -> None:
    layout, state, cohort = situation(method, m, d, dtype)
    one = method.aggregate(cohort, state.method, layout)
    for shuffle in range(3):
        order = stream(shuffle, "arrival", m).permutation(m)
        late = replace(cohort, updates=tuple(cohort.updates[k] for k in order))
        other = method.aggregate(late, state.method, layout)
        assert_same(other.direction, one.direction)
        assert_same(other.state, one.state)
        assert repr(other.report) == repr(one.report)


@METHOD
@SHAPES
def test_zero_updates_give_a_zero_step(method: Method[Any], m: int, d: int) -> None:
    layout = layout_of_size(d)
    state = begin(method, layout, np.ones(d))
    still = {str(k): Quadratic(np.ones(d), np.ones(d)) for k in range(m)}
    step = method.aggregate(cohort_at(method, state, layout, still), state.method, layout)
    assert_array_equal(step.direction, np.zeros(d))
    assert all(np.isfinite(array).all() for array in arrays_in(step.state))


def parts_of(granularity: Granularity, layout: Layout) -> list[slice]:
    """The slices in each of which identical clients are led where FedAvg leads them."""
    match granularity:
        case Granularity.MODEL:
            return [slice(None)]
        case Granularity.TENSOR:
            return list(layout.spans.values())
        case Granularity.COORDINATE:
            return [slice(k, k + 1) for k in range(layout.size)]


@METHOD
@SHAPES
def test_identical_clients_give_the_direction_of_fedavg(
    method: Method[Any], m: int, d: int
) -> None:
    layout, (problem,) = layout_of_size(d), bowls(1, d).values()
    state = begin(method, layout, np.full(d, 3.0))
    cohort = cohort_at(method, state, layout, {str(k): problem for k in range(m)})
    ours = method.aggregate(cohort, state.method, layout).direction
    theirs = FedAvg().aggregate(cohort, None, layout).direction
    for part in parts_of(method.granularity, layout):
        one, other = ours[part], theirs[part]
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert cosine == pytest.approx(1, abs=1e-12)


@METHOD
@SHAPES
def test_aggregate_and_local_steps_write_to_no_argument(
    method: Method[Any], m: int, d: int
) -> None:
    layout, state, cohort = situation(method, m, d)
    given = [*arrays_in(cohort), *arrays_in(state)]
    copies = [array.copy() for array in given]
    for array in given:
        array.flags.writeable = False
    server_payloads = [method.server_payload(state.method, client) for client in bowls(m, d)]
    for server_payload in server_payloads:
        for array in arrays_in(server_payload):
            array.flags.writeable = False
        local_steps(method, server_payload, layout, state.weights, bowls(1, d)["0"].gradient)
    next_state(state, cohort, method, layout, 0.5)
    for array, copy in zip(given, copies, strict=True):
        assert_same(array, copy)


@METHOD
@SHAPES
def test_same_round_twice_gives_the_same_bits(method: Method[Any], m: int, d: int) -> None:
    """No method keeps state in an attribute."""
    layout, state, cohort = situation(method, m, d)
    one, other = (next_state(state, cohort, method, layout, 1.0)[0] for _ in range(2))
    assert_same(one, other)


# A public report of this bug: https://github.com/flwrlabs/flower/issues/4344
@METHOD
def test_huge_buffers_change_no_bit_of_step_and_state(method: Method[Any]) -> None:
    """Whatever the buffers hold, the method's step and state are the same to the last bit."""
    layout = layout_of_size(9)
    state = warm(method, layout, 4)
    cohort = cohort_at(method, state, layout, bowls(4, 9))
    plain, _ = next_state(state, cohort, method, layout, 1.0)
    huge = {"norm.running_mean": np.full(9, 1e30, np.float32), "norm.count": np.array(7)}
    loud = replace(cohort, updates=tuple(replace(u, buffers=huge) for u in cohort.updates))
    after, _ = next_state(replace(state, buffers=huge), loud, method, layout, 1.0)
    assert_same(after.weights, plain.weights)
    assert_same(after.method, plain.method)
    assert average_buffer(loud, "norm.count") == 7


# ---------------------------------------------------------------- many rounds


NEUTRAL = {name: kind.neutral() for name, kind in METHODS.items()}


@pytest.mark.parametrize("name", [name for name, neutral in NEUTRAL.items() if neutral])
@DTYPE
def test_neutral_setting_gives_the_bits_of_fedavg(name: str, dtype: Any) -> None:
    neutral = NEUTRAL[name]
    layout, problems, cohorts = layout_of_size(12), bowls(7, 12), drawn(7, 4, 6)
    runs = [
        play(rule, begin(rule, layout, np.ones(12), dtype), layout, problems, cohorts,
             examples=sizes)
        for rule in (neutral, FedAvg())
    ]  # fmt: skip
    for ours, theirs in zip(*runs, strict=True):
        assert_same(ours.weights, theirs.weights)


@METHOD
@SHAPES
def test_25_rounds_with_a_third_of_the_clients_stay_finite(
    method: Method[Any], m: int, d: int
) -> None:
    layout = layout_of_size(d)
    cohorts = drawn(m, max(1, m // 3), 25)
    states = play(method, begin(method, layout, np.ones(d)), layout, bowls(m, d), cohorts)
    assert [state.round for state in states] == list(range(1, 26))
    assert all(np.isfinite(array).all() for array in arrays_in(states[-1]))


@METHOD
@DTYPE
def test_first_server_payload_is_zero(method: Method[Any], dtype: Any) -> None:
    state = begin(method, layout_of_size(9), np.ones(9), dtype)
    for client in ("0", "site-b"):
        for vector in method.server_payload(state.method, client).values():
            assert vector.size
            assert_array_equal(vector, np.zeros(vector.size))


def vectors_in(state: Any) -> int:
    """How many vectors of clients a method's state holds."""
    parts = [state, *(getattr(state, item.name) for item in fields(state))] if state else []
    return sum(len(part) for part in parts if isinstance(part, ClientVectors))


@METHOD
@pytest.mark.parametrize(("clients", "size"), [(3, 3), (12, 2), (12, 5)])
def test_state_never_exceeds_its_announced_size(
    method: Method[Any], clients: int, size: int
) -> None:
    """In float32 numbers, the products among them, and in vectors of clients."""
    layout = layout_of_size(2000)
    cohorts = drawn(clients, size, 25)
    start = begin(method, layout, np.ones(2000), np.float32)
    bound = 4 * (
        method.state_floats(layout, clients, size) + method.working_floats(layout, clients, size)
    )
    kept = method.stored_clients(layout, clients, size)
    for state in play(method, start, layout, bowls(clients, 2000), cohorts):
        assert sum(array.nbytes for array in arrays_in(state.method)) <= bound
        assert vectors_in(state.method) <= kept


# ---------------------------------------------------------------- on disk

BUFFERS = {"norm.running_mean": np.array([0.5, 2.0], np.float32), "norm.count": np.array(7)}


@METHOD
@SHAPES
@DTYPE
def test_checkpoint_restores_the_state_bit_for_bit(
    method: Method[Any], m: int, d: int, dtype: Any, tmp_path: Path
) -> None:
    layout, state, _ = situation(method, m, d, dtype)
    folder = tmp_path / f"{m}-{d}-{np.dtype(dtype).name}"
    save(folder, state, fingerprint="f", keep=1)
    restored, warnings = load_newest(folder, method, layout, fingerprint="f")
    assert warnings == []
    assert_same(restored, state)


@METHOD
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_resumed_run_ends_with_the_state_of_the_uninterrupted_run(
    method: Method[Any], stop: int, tmp_path: Path
) -> None:
    layout, problems, cohorts = layout_of_size(12), bowls(7, 12), drawn(7, 3, 8)
    start = begin(method, layout, np.ones(12), np.float32)
    through = play(method, start, layout, problems, cohorts, examples=sizes)[-1]
    halfway = [start, *play(method, start, layout, problems, cohorts[:stop], examples=sizes)][-1]
    save(tmp_path, halfway, fingerprint="f", keep=1)
    restored, _ = load_newest(tmp_path, method, layout, fingerprint="f")
    assert restored is not None
    resumed = play(method, restored, layout, problems, cohorts[stop:], examples=sizes)[-1]
    assert_same(resumed, through)
