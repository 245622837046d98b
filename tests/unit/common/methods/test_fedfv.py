"""FedFV: the card's numbers, the same rule written out in d dimensions, and every edge."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.linalg import norm
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import ConfigError
from common.methods import FedAvg, FedFV
from common.methods.history import History
from common.rng import stream
from common.types import LOSS, LOSS_BEFORE, Cohort, Step, Vector
from server_app.round.sampling import sample_clients
from server_app.state.server_state import ServerState, next_state
from tests.builders import EXACT, TOY3, TOY3_LOSSES, cohort_of, layout_of_size, most_remembered
from tests.each import for_each

LAYOUT = layout_of_size(2)  # FedFV does not look at it
ABSENT = (-0.1, -0.2)


def toy3(number: int = 1) -> Cohort:
    return cohort_of(TOY3, losses=TOY3_LOSSES, round=number)


def after_absent(method: FedFV, cohort: Cohort, *, age: int = 1, gone: Any = ABSENT) -> Step[Any]:
    """The step of a cohort `age` rounds after client x sent `gone`."""
    first = cohort_of([gone], names=["x"], round=cohort.round - age)
    state = method.aggregate(first, History(), LAYOUT).state
    return method.aggregate(cohort, state, LAYOUT)


# ---------------------------------------------------------------- exact numbers


@pytest.mark.parametrize(
    ("alpha", "direction", "weights"),
    [
        (0.0, (0.027064310425, 0.167798724638), (0.972935689575, 0.832201275362)),
        (0.1, (-0.006066393685, 0.169859023183), (1.006066393685, 0.830140976817)),
    ],
)
def test_toy3(alpha: float, direction: Vector, weights: Vector) -> None:
    start = ServerState(0, np.ones(2), {}, History())
    state, step = next_state(start, toy3(), FedFV(alpha=alpha), LAYOUT, 1.0)
    assert_allclose(step.direction, direction, **EXACT)
    assert_allclose(state.weights, weights, **EXACT)
    assert norm(step.direction) == pytest.approx(0.169967317120, abs=1e-9)


def test_toy3_with_an_absent_client() -> None:
    step = after_absent(FedFV(alpha=0.1), toy3(2))
    assert_allclose(step.direction, (-0.152023390013, 0.076011695007), **EXACT)
    assert step.direction @ np.array(ABSENT) == pytest.approx(0, abs=1e-15)
    assert step.report["conflicts_absent"] == 1


# ---------------------------------------------------------------- the rule in d dimensions


def disagreeing(seed: int, m: int, d: int = 12) -> Vector:
    rng = stream(seed, "clients")
    return rng.normal(size=(m, d)) * rng.uniform(0.1, 10, (m, 1)) + 0.2


def written_out(method: FedFV, cohort: Cohort, seen: Mapping[str, tuple[int, Vector]]) -> Vector:
    """The card's steps 2 to 6 with whole vectors; `seen` holds the cohort as well."""
    m, now = len(cohort.updates), cohort.round
    deltas = {update.client: update.delta for update in cohort.updates}
    order = sorted(
        deltas, key=lambda c: dict(zip(deltas, cohort.metric(LOSS_BEFORE), strict=True))[c]
    )
    keep = order[math.ceil((m - 1) * (1 - method.alpha)) :] if method.alpha > 0 else []
    total = np.zeros_like(cohort.updates[0].delta)
    for i in deltas:
        q = deltas[i].copy()
        for j in order if i not in keep else []:
            if j != i and deltas[j] @ q < 0:
                q -= (deltas[j] @ q) / (deltas[j] @ deltas[j]) * deltas[j]
        total += q
    bent, tau = total / m, method.tau
    ages = {"paper": range(tau, 0, -1), "code": range(tau - 1, -1, -1)}[method.window]
    for age in ages if now - 1 >= tau else ():
        against = [v for at, v in seen.values() if at == now - age and bent @ v < 0]
        if against:
            c = np.sum(against, axis=0)
            bent = bent - (bent @ c) / (c @ c) * c
    return bent / norm(bent) * norm(cohort.mean(cohort.equal_shares))


@for_each("seed", range(3))
@for_each("window", ["paper", "code"])
@for_each(("alpha", "tau"), [(0.0, 0), (0.1, 1), (0.5, 2), (0.1, 5)])
def test_coefficients_say_the_same_as_whole_vectors(
    alpha: float, tau: int, window: str, seed: int
) -> None:
    """Twelve rounds in which five of nine clients take part."""
    method, state = FedFV(alpha=alpha, tau=tau, window=window), History()
    seen: dict[str, tuple[int, Vector]] = {}
    rng, projected = stream(seed, "losses"), 0
    for number in range(1, 13):
        names = sample_clients([str(k) for k in range(9)], 5, seed=seed, round=number)
        losses = rng.uniform(0.1, 3, 5).tolist()
        rows = disagreeing(100 * seed + number, 5, 4)
        cohort = cohort_of(rows, names=names, losses=losses, round=number)
        step = method.aggregate(cohort, state, LAYOUT)
        state = step.state
        seen |= {update.client: (number, update.delta) for update in cohort.updates}
        expected = written_out(method, cohort, seen)
        assert_allclose(step.direction, expected, rtol=1e-9, atol=1e-12)
        mean = cohort.mean(cohort.equal_shares)
        cosine = expected @ mean / norm(expected) / norm(mean)
        assert step.report["cosine"] == pytest.approx(cosine, abs=1e-9)
        projected += step.report["conflicts"] + step.report["conflicts_absent"]
    assert projected > 12


# ---------------------------------------------------------------- who is protected


@pytest.mark.parametrize("tau", [1, 2, 3])
def test_an_absent_client_is_protected_for_tau_rounds_and_no_longer(tau: int) -> None:
    method = FedFV(tau=tau)
    alone = method.aggregate(toy3(9), History(), LAYOUT)
    for age in range(1, tau + 1):
        step = after_absent(method, toy3(9), age=age)
        assert step.direction @ np.array(ABSENT) == pytest.approx(0, abs=1e-12)
    late = after_absent(method, toy3(9), age=tau + 1)
    assert_array_equal(late.direction, alone.direction)
    assert late.state.seen.get("x") is None


def test_the_published_window_protects_nobody_absent_at_its_default_tau() -> None:
    code = FedFV(window="code")
    assert_array_equal(
        after_absent(code, toy3(9)).direction, code.aggregate(toy3(9), History(), LAYOUT).direction
    )
    wider = after_absent(FedFV(window="code", tau=2), toy3(9))
    assert wider.report["conflicts_absent"] >= 1


def test_the_published_window_projects_off_participants_once_more() -> None:
    """The kept client's update leaves the mean in conflict with client 1, of age 0."""
    rows = np.array([[1.0, 0.0], [-3.0, 1.0]])
    paper, code = (
        FedFV(window=window).aggregate(
            cohort_of(rows, losses=(1.0, 2.0), round=2), History(), LAYOUT
        )
        for window in ("paper", "code")
    )
    assert paper.direction @ rows[0] < 0
    assert code.direction @ rows[0] == pytest.approx(0, abs=1e-12)
    assert code.report["conflicts_absent"] == 1


def test_nobody_absent_is_protected_before_there_were_tau_rounds() -> None:
    method = FedFV(tau=2)
    first = method.aggregate(toy3(2), History(), LAYOUT)
    assert_array_equal(after_absent(method, toy3(2)).direction, first.direction)
    assert after_absent(method, toy3(3)).report["conflicts_absent"] == 1


def test_a_client_that_returns_is_not_protected_twice() -> None:
    method = FedFV()
    first = cohort_of([ABSENT], names=["1"])
    state = method.aggregate(first, History(), LAYOUT).state
    again = method.aggregate(toy3(2), state, LAYOUT)
    assert_array_equal(again.direction, method.aggregate(toy3(2), History(), LAYOUT).direction)
    assert again.report["history"] == 0


def test_the_clients_with_the_largest_losses_before_training_are_kept() -> None:
    cohort = toy3()
    told = zip(cohort.updates, (3.0, 2.0, 1.0), strict=True)
    during = tuple(
        replace(update, metrics={LOSS: loss, LOSS_BEFORE: update.metrics[LOSS_BEFORE]})
        for update, loss in told
    )
    step = FedFV().aggregate(replace(cohort, updates=during), History(), LAYOUT)
    assert step.report["kept"] == ["3"]


@pytest.mark.parametrize(
    ("m", "alpha", "kept"),
    [
        (1, 0.1, 1),
        (3, 0.1, 1),
        (10, 0.1, 1),
        (11, 0.1, 2),
        (21, 0.1, 3),
        (11, 0.7, 8),  # 10 * (1 - 0.7) is three clients, not four
        (5, 1.0, 5),
        (5, 0.0, 0),
    ],
)
def test_how_many_are_kept(m: int, alpha: float, kept: int) -> None:
    cohort = cohort_of(disagreeing(0, m), losses=[float(k + 1) for k in range(m)])
    step = FedFV(alpha=alpha).aggregate(cohort, History(), LAYOUT)
    assert step.report["kept"] == [str(k + 1) for k in range(m - kept, m)]


def test_equal_losses_are_ordered_by_client() -> None:
    names = ["10", "9", "2"]
    step = FedFV().aggregate(
        cohort_of(TOY3, names=names, losses=(1.0, 1.0, 1.0)), History(), LAYOUT
    )
    assert step.report["kept"] == ["10"]


# ---------------------------------------------------------------- edges


CALM = {
    "agreement": (FedFV(), np.abs(disagreeing(1, 6))),
    "all kept": (FedFV(alpha=1.0, tau=0), disagreeing(1, 6)),
    "one client": (FedFV(), disagreeing(1, 1)),
    "no updates": (FedFV(), np.zeros((3, 5))),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("method", "rows"), CALM.values(), ids=CALM)
def test_without_conflicts_the_step_is_the_uniform_mean_itself(
    method: FedFV, rows: Vector, dtype: Any
) -> None:
    cohort = cohort_of(rows.astype(dtype), range(1, len(rows) + 1))
    step = method.aggregate(cohort, History(), LAYOUT)
    assert_array_equal(
        step.direction, FedAvg(uniform=True).aggregate(cohort, None, LAYOUT).direction
    )
    assert step.report["conflicts"] == step.report["conflicts_absent"] == 0


def test_how_many_examples_a_client_has_changes_nothing() -> None:
    rows = disagreeing(2, 5)
    one, other = (
        FedFV().aggregate(cohort_of(rows, sizes, losses=(1, 2, 3, 4, 5)), History(), LAYOUT)
        for sizes in ([1] * 5, [9, 1, 400, 2, 7])
    )
    assert_array_equal(one.direction, other.direction)


def test_a_client_without_an_update_is_in_conflict_with_nobody() -> None:
    rows = np.vstack([np.zeros(2), TOY3])
    with_zero = FedFV().aggregate(cohort_of(rows, losses=(0.1, *TOY3_LOSSES)), History(), LAYOUT)
    without = FedFV().aggregate(toy3(), History(), LAYOUT)
    assert_allclose(with_zero.direction, without.direction * 3 / 4, **EXACT)
    tiny = np.vstack([[-1e-170, -1e-170], TOY3])  # its square is 0 in floats
    with_tiny = FedFV().aggregate(cohort_of(tiny, losses=(0.1, *TOY3_LOSSES)), History(), LAYOUT)
    assert_allclose(with_tiny.direction, with_zero.direction, **EXACT)
    for nothing in ((0.0, 0.0), (-1e-170, -1e-170)):
        gone = after_absent(FedFV(), toy3(2), gone=nothing)
        assert_array_equal(gone.direction, without.direction)


def test_one_client_alone_still_yields_to_an_absent_one() -> None:
    step = after_absent(FedFV(), cohort_of([[1.0, 0.0]], round=2), gone=(-1.0, 1.0))
    assert_allclose(step.direction, np.sqrt([0.5, 0.5]), **EXACT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-8])
def test_when_nothing_is_left_of_the_direction_the_step_is_the_mean(
    dtype: Any, scale: float
) -> None:
    """Two opposed clients leave the rounding of their updates, which must not become a step."""
    rows = np.outer([1, -0.4], scale * stream(1, "row").normal(size=300)).astype(dtype)
    cohort = cohort_of(rows)
    step = FedFV(alpha=0).aggregate(cohort, History(), LAYOUT)
    assert step.report["cosine"] is None
    assert_array_equal(step.direction, cohort.mean(cohort.equal_shares))


def test_small_updates_are_treated_like_large_ones() -> None:
    """No constant is added to a length: the step is as long as the updates, and no different."""
    rows = disagreeing(3, 6)
    large, small = (
        FedFV().aggregate(cohort_of(rows * scale, losses=(6, 5, 4, 3, 2, 1)), History(), LAYOUT)
        for scale in (1.0, 1e-4)
    )
    assert large.report["conflicts"] > 0
    assert_allclose(small.direction * 1e4, large.direction, rtol=1e-9)


def test_a_mean_of_zero_is_no_step() -> None:
    rows = np.array([[1.0, 0.0], [0.5, 1.0], [-1.5, -1.0]])
    step = FedFV().aggregate(cohort_of(rows, losses=(1.0, 2.0, 3.0)), History(), LAYOUT)
    assert_allclose(step.direction, (0, 0), **EXACT)


def test_float32_updates_get_a_float32_step_close_to_the_float64_one() -> None:
    rows = disagreeing(2, 12, 5000)
    exact, step = (
        FedFV().aggregate(cohort_of(rows.astype(dtype)), History(), LAYOUT)
        for dtype in (np.float64, np.float32)
    )
    assert exact.report["conflicts"] > 0
    assert step.direction.dtype == np.float32
    assert_allclose(step.direction, exact.direction, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "clients", "rows"),
    [
        ({"tau": 0}, 9, 2),
        ({"tau": 1}, 9, 4),
        ({"tau": 3}, 9, 8),
        ({"tau": 9}, 9, 9),
        ({"tau": 0, "window": "code"}, 9, 2),
        ({"tau": 1, "window": "code"}, 9, 2),
        ({"tau": 3, "window": "code"}, 9, 6),
    ],
)
def test_the_memory_that_is_announced_is_reached_and_never_exceeded(
    settings: dict[str, Any], clients: int, rows: int
) -> None:
    """Cohorts of two that take turns fill the window with different clients."""
    method, most = FedFV(**settings), 4 * rows * 50
    assert most_remembered(method, clients) == most
    assert 4 * method.state_floats(layout_of_size(50), clients, 2) == most


@pytest.mark.parametrize(
    "setting", [{"alpha": -0.1}, {"alpha": 1.1}, {"tau": -1}, {"tau": 1.5}, {"window": "both"}]
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        FedFV(**setting)


def test_a_window_without_end_is_as_quick_as_any() -> None:
    for window in ("paper", "code"):
        method = FedFV(tau=2**62, window=window)
        assert method.state_floats(layout_of_size(2), 10, 3) == 2 * 10
        step = method.aggregate(cohort_of(TOY3, losses=TOY3_LOSSES), History(), layout_of_size(2))
        assert np.isfinite(step.direction).all()
