"""FedPCD: the page's figures and the exact numbers of small examples, to 1e-9."""

from typing import Any

import numpy as np
import pytest
from numpy.linalg import norm
from numpy.testing import assert_allclose, assert_array_equal

from common.methods import FedPCD
from common.methods.history import History
from common.rng import stream
from common.types import Vector
from tests.builders import EXACT, TOY3, TOY3_EXAMPLES, cohort_of, compass
from tests.unit.common.methods.fedpcd_cases import (
    LAYOUT,
    PAGE,
    PAGE_MEAN,
    bent_point,
    move,
    toy3,
)

# ---------------------------------------------------------------- exact numbers


@pytest.mark.parametrize("solver", ["osqp", "exact"])
@pytest.mark.parametrize(
    ("tau", "multipliers", "point", "progress", "direction"),
    [
        (
            0,
            {"3": 0.10590698400229},
            (0.42024147392677, 0.90121074912109),
            (0.57035066593908, 0.93440782793118, 0),
            (0.21438406671140, 0.45974811470959),
        ),
        (
            0.02,
            {"3": 0.12590698400229},
            (0.40211531818603, 0.90966311435590),
            (0.55396762505330, 0.92756742506466, 0.02),
            (0.20509561962333, 0.46396620981496),
        ),
        (
            0.25,
            {"3": 0.35590698400229},
            (0.19366452716760, 1.0068653145563),
            (0.36556265486684, 0.84890279209976, 0.25),
            (0.095815188370763, 0.49814486519106),
        ),
        (
            1,
            {"1": 3.7958650730185, "3": 4.2152976184106},
            (0.43406609528393, 3.2970593284474),
            (1, 2.6383040885780, 1),
            (0.066212793988675, 0.50293610225450),
        ),
    ],
)
def test_the_pages_figure(
    tau: float,
    multipliers: dict[str, float],
    point: Vector,
    progress: Vector,
    direction: Vector,
    solver: str,
) -> None:
    state, step = move(FedPCD(tau=tau, solver=solver), cohort_of(PAGE))
    report = step.report
    assert report["feasible"]
    assert report["active"] == len(multipliers)
    assert report["multipliers"] == pytest.approx(multipliers, abs=1e-9)
    assert report["largest_multiplier"] == pytest.approx(max(multipliers.values()), abs=1e-9)
    assert report["length_mean"] == pytest.approx(PAGE_MEAN, abs=1e-9)
    assert report["least_gain"] == pytest.approx(min(progress), abs=1e-9)
    assert_allclose(bent_point(step), point, **EXACT)
    assert_allclose(PAGE @ bent_point(step), progress, **EXACT)
    assert_allclose(step.direction, direction, **EXACT)
    assert_allclose(state.weights, 1 - np.array(direction), **EXACT)


@pytest.mark.parametrize(
    ("tau", "cosines"),
    [
        (0.25, (0.35653474170784, 0.82793834021861, 0.24382601515855)),
        (1, (0.30070579950427, 0.79335334029124, 0.30070579950427)),
    ],
)
def test_the_guarantee_holds_before_the_rescaling_and_the_cosines_are_below_tau(
    tau: float, cosines: Vector
) -> None:
    _, step = move(FedPCD(tau=tau), cohort_of(PAGE))
    assert_allclose(PAGE @ step.direction / norm(step.direction), cosines, **EXACT)
    assert step.report["length_before"] > 1
    assert (PAGE @ bent_point(step) >= tau - 1e-9).all()


@pytest.mark.parametrize(
    ("tau", "angle", "turn"),
    [
        (0, 65, 6.0794242942),
        (0.02, 66.152241263575, 7.2316655578),
        (0.25, 79.112465493344, 20.1918897876),
        (1, 82.5, 23.5794242942),
    ],
)
def test_the_pages_angles(tau: float, angle: float, turn: float) -> None:
    _, step = move(FedPCD(tau=tau), cohort_of(PAGE))
    x, y = step.direction
    assert np.degrees(np.arctan2(y, x)) == pytest.approx(angle, abs=1e-9)
    assert np.degrees(np.arccos(step.report["cosine"])) == pytest.approx(turn, abs=1e-8)


def test_agreeing_clients_get_the_mean_itself() -> None:
    cohort = cohort_of(compass(35, 60, 85))
    _, step = move(FedPCD(tau=0.25), cohort)
    assert step.report["multipliers"] == {}
    assert step.report["cosine"] == 1
    assert_array_equal(step.direction, cohort.mean(cohort.shares))
    assert_allclose(step.direction, (0.46876926234555, 0.81193217940908), **EXACT)


def test_two_against_one() -> None:
    _, step = move(FedPCD(tau=0.25), cohort_of(compass(20, 150, 165)))
    assert step.report["multipliers"] == pytest.approx({"1": 0.57599157871825}, abs=1e-9)
    point = bent_point(step)
    assert_allclose(point, (-0.088413341873861, 0.97386476041773), **EXACT)
    assert np.degrees(np.arctan2(point[1], point[0])) == pytest.approx(95.187437300912, abs=1e-9)


@pytest.mark.parametrize(
    ("tau", "weights", "multipliers"),
    [
        (0, (0.917902496993, 0.835804993986), {"3": 0.048722553713}),
        (0.1, (0.934668141521, 0.828443163157), {"3": 0.148722553713}),
        (0.5, (1, 0.816424402493), {"1": 0.001484561094, "3": 0.549613290370}),
    ],
)
def test_toy3(tau: float, weights: Vector, multipliers: dict[str, float]) -> None:
    state, step = toy3(tau=tau)
    assert_allclose(state.weights, weights, **EXACT)
    assert step.report["multipliers"] == pytest.approx(multipliers, abs=1e-9)


def test_toy3_without_normalisation() -> None:
    state, step = toy3(tau=0.1, normalise=False)
    assert step.report["multipliers"] == pytest.approx({"3": 0.14}, abs=1e-9)
    assert_allclose(bent_point(step), (0.62, 1.74), **EXACT)
    assert_allclose(state.weights, (0.938382775965, 0.827074242225), **EXACT)


@pytest.mark.parametrize(
    ("tau", "multipliers"), [(0.1, {"1": 0.25, "3": 0.25}), (0.5, {"1": 1.25, "3": 1.25})]
)
def test_toy3_without_a_primary_does_not_depend_on_tau(
    tau: float, multipliers: dict[str, float]
) -> None:
    state, step = toy3(tau=tau, primary=False)
    assert step.report["multipliers"] == pytest.approx(multipliers, abs=1e-9)
    assert_allclose(state.weights, (1, 0.816424402493), **EXACT)


@pytest.mark.parametrize(
    ("history", "after", "multipliers"),
    [
        (0, [(1.2, 0.9), (1.0375, 0.725), (0.8375, 0.625)], [{}, {}, {}]),
        (
            1,
            [(1.2, 0.9), (1.115911278711, 0.676481909117), (0.915911278711, 0.576481909117)],
            [{}, {"3": 0.380898753271}, {}],
        ),
        (
            2,
            [(1.2, 0.9), (1.115911278711, 0.676481909117), (1.041490437957, 0.465622860315)],
            [{}, {"3": 0.380898753271}, {"3": 0.7}],
        ),
    ],
)
def test_the_history_table(
    history: int, after: list[Vector], multipliers: list[dict[str, float]]
) -> None:
    method, state = FedPCD(tau=0.1, history=history), None
    for number, present in enumerate([(2,), (0, 1), (0,)], start=1):
        cohort = cohort_of(
            TOY3[list(present)],
            [TOY3_EXAMPLES[k] for k in present],
            names=[str(k + 1) for k in present],
            round=number,
        )
        state, step = move(method, cohort, state)
        assert_allclose(state.weights, after[number - 1], **EXACT)
        assert step.report["multipliers"] == pytest.approx(multipliers[number - 1], abs=1e-9)


INFEASIBLE = np.array([[1.0, 0.0], [-0.5, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize("primary", [True, False])
def test_when_nobody_can_be_served_the_step_is_fedavgs_and_says_so(primary: bool) -> None:
    cohort = cohort_of(INFEASIBLE)
    _, step = move(FedPCD(tau=0.1, primary=primary), cohort)
    assert step.report["feasible"] is False
    assert_array_equal(step.direction, cohort.mean(cohort.shares))
    assert_allclose(step.direction, (0.166666666667, 0.333333333333), **EXACT)


def test_tau_zero_is_always_feasible() -> None:
    _, step = move(FedPCD(tau=0), cohort_of(INFEASIBLE))
    assert step.report["feasible"]
    assert_allclose(bent_point(step), (0, 0.894427190998), **EXACT)
    assert_allclose(step.direction, (0, 0.372677996250), **EXACT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_projection_onto_zero_is_no_step_and_not_stretched_noise(dtype: Any) -> None:
    """At tau 0 two opposed clients leave only 0; float32 rounding must not become a step."""
    rows = np.outer([1, -0.4], stream(1, "row").normal(size=300)).astype(dtype)
    step = FedPCD(tau=0).aggregate(cohort_of(rows), History(), LAYOUT)
    assert step.report["feasible"]
    assert_array_equal(step.direction, np.zeros(300, dtype))
