"""FedNova weighs clients by their displacement per local step."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from common.methods import FedAvg, FedNova
from common.rng import stream
from common.types import STEPS, Cohort
from tests.builders import assert_same, bowls, cohort_of, layout_of_size

LAYOUT = layout_of_size(2)


def with_steps(cohort: Cohort, *steps: int) -> Cohort:
    """The same cohort, in which the clients took these numbers of local steps."""
    pairs = zip(cohort.updates, steps, strict=True)
    return replace(cohort, updates=tuple(replace(update, steps=k) for update, k in pairs))


def test_two_clients_give_the_numbers_of_a_calculation_by_hand() -> None:
    """Shares 1/4 and 3/4, 2 and 6 steps: tau_eff = 5, direction 5 (4/2 / 4 + 12/6 * 3/4) = 10."""
    cohort = with_steps(cohort_of([[4.0, 0.0], [12.0, 6.0]], (1, 3)), 2, 6)
    step = FedNova().aggregate(cohort, None, LAYOUT)
    assert step.report["effective_steps"] == 5
    assert step.report["weights"] == pytest.approx({"1": 5 / 8, "2": 5 / 8})
    assert_allclose(step.direction, [10.0, 3.75])


def test_uniform_ignores_the_examples() -> None:
    cohort = with_steps(cohort_of([[4.0, 0.0], [12.0, 6.0]], (1, 3)), 2, 6)
    step = FedNova(uniform=True).aggregate(cohort, None, LAYOUT)
    assert step.report["effective_steps"] == 4
    assert_allclose(step.direction, [4 * (2 + 2) / 2, 4 * 1 / 2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("steps", [1, 3, 7, 1000])
def test_equal_numbers_of_steps_are_fedavg_bit_for_bit(steps: int, dtype: type) -> None:
    rows = stream(1, "nova").normal(size=(7, 50)).astype(dtype)
    cohort = with_steps(cohort_of(rows, [3, 1, 4, 1, 5, 9, 2]), *[steps] * 7)
    theirs = FedAvg().aggregate(cohort, None, LAYOUT)
    assert_same(FedNova().aggregate(cohort, None, LAYOUT).direction, theirs.direction)


def test_the_fixed_point_is_that_of_equal_steps_however_many_steps_clients_take() -> None:
    """The claim of the paper: with small rates the optimum does not depend on the tau_i.

    Three quadratics, 1, 4 and 16 steps of 0.002: FedNova ends at the optimum of the mean loss,
    FedAvg far from it.
    """
    problems, rate, taus = bowls(3, 4), 0.002, (1, 4, 16)
    steep = np.array([bowl.h for bowl in problems.values()])
    centres = np.array([bowl.a for bowl in problems.values()])
    optimum = (steep * centres).sum(axis=0) / steep.sum(axis=0)

    def end(method: FedAvg) -> float:
        weights, layout = np.zeros(4), layout_of_size(4)
        for number in range(1, 1500):
            rows = []
            for bowl, tau in zip(problems.values(), taus, strict=True):
                local = weights.copy()
                for _ in range(tau):
                    local -= rate * bowl.gradient(local)
                rows.append(weights - local)
            cohort = with_steps(cohort_of(rows, round=number, lr=rate), *taus)
            weights = weights - method.aggregate(cohort, None, layout).direction
        return float(np.linalg.norm(weights - optimum))

    assert end(FedNova()) < 0.02 < 10 * end(FedNova()) < end(FedAvg())


def test_it_needs_the_number_of_steps_and_refuses_local_momentum() -> None:
    assert FedNova.needs == (STEPS,)
    assert list(FedNova().config_problems(lr=0.1, momentum=0.0, weight_decay=0.1)) == []
    (problem,) = FedNova().config_problems(lr=0.1, momentum=0.9, weight_decay=0.0)
    assert problem.startswith("train.momentum must be 0, not 0.9")
