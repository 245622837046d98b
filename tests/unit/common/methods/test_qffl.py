"""q-FFL lets larger losses weigh more, at a step that no loss can overflow."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.methods import QFFL, FedAvg
from common.rng import stream
from common.types import Cohort, Vector
from tests.builders import (
    EXACT,
    TOY3,
    TOY3_EXAMPLES,
    TOY3_LOSSES,
    assert_same,
    cohort_of,
    layout_of_size,
)
from tests.each import for_each

LAYOUT = layout_of_size(2)


def toy3(**more: float) -> Cohort:
    return cohort_of(TOY3, TOY3_EXAMPLES, losses=TOY3_LOSSES, **more)


def direction(q: float, cohort: Cohort) -> Vector:
    return QFFL(q=q).aggregate(cohort, None, LAYOUT).direction


def by_the_book(q: float, cohort: Cohort) -> Vector:
    """The card's four lines, as they stand."""
    losses, lipschitz = cohort.metric("loss-before") + 1e-10, 1 / cohort.local_lr
    g = lipschitz * np.stack([update.delta for update in cohort.updates])
    D = losses[:, None] ** q * g
    h = q * losses ** (q - 1) * (g**2).sum(axis=1) + lipschitz * losses**q
    step: Vector = D.sum(axis=0) / h.sum()
    return step


@pytest.mark.parametrize(
    ("q", "step"),
    [
        (0.0, (0.033333333333, 0.166666666667)),
        (0.1, (0.022404358018, 0.155192412386)),
        (1.0, (-0.036363636364, 0.1)),
        (2.0, (-0.066666666667, 0.074358974359)),
    ],
)
def test_toy3(q: float, step: tuple[float, float]) -> None:
    assert_allclose(direction(q, toy3()), step, **EXACT)


@for_each("q", [0.001, 0.1, 1.0, 5.0])
@for_each("lr", [1e-3, 0.1, 2.0])
@for_each("seed", range(5))
def test_weights_relative_to_the_largest_loss_change_nothing(
    q: float, lr: float, seed: int
) -> None:
    """And the learning rate is that of the round."""
    rng = stream(seed, "q")
    cohort = cohort_of(rng.normal(size=(6, 9)), losses=rng.exponential(size=6).tolist(), lr=lr)
    assert_allclose(direction(q, cohort), by_the_book(q, cohort), rtol=1e-9, atol=1e-12)


def test_q_of_zero_is_the_plain_mean_bit_for_bit_and_not_that_by_examples() -> None:
    rows = stream(1, "q").normal(size=(7, 33)).astype(np.float32)
    cohort = cohort_of(rows, [1, 5, 9, 2, 4, 4, 8], losses=[0.0, 1e-9, 1.0, 2.0, 3.0, 1e9, 0.5])
    plain = FedAvg(uniform=True).aggregate(cohort, None, LAYOUT).direction
    assert_same(direction(0.0, cohort), plain)
    assert not np.allclose(plain, FedAvg().aggregate(cohort, None, LAYOUT).direction)


@for_each("q", [0.0, 0.1, 0.999, 1.0, 5.0, 50.0, 1e4])
@for_each(
    "losses",
    [(0.0, 0.0, 0.0), (0.0, 1.0, 2.0), (1e-300, 1e-5, 700.0), (1.7e308, 1.0, 0.0), (1e300,) * 3],
)
@for_each("dtype", [np.float32, np.float64])
def test_no_loss_and_no_q_overflow(q: float, losses: tuple[float, ...], dtype: type) -> None:
    step = QFFL(q=q).aggregate(cohort_of(TOY3.astype(dtype), losses=losses), None, LAYOUT)
    assert step.direction.dtype == dtype
    assert np.isfinite(step.direction).all()
    assert np.isfinite(list(step.report["weights"].values())).all()
    assert 0 < step.report["weight_sum"] <= 1 + 1e-12


@pytest.mark.parametrize("q", [0.0, 0.1, 5.0])
@pytest.mark.parametrize("losses", [(0.0, 0.0, 0.0), TOY3_LOSSES])
def test_clients_that_did_not_move_make_no_step(q: float, losses: tuple[float, ...]) -> None:
    assert_array_equal(direction(q, cohort_of(np.zeros((3, 2)), losses=losses)), (0.0, 0.0))


def test_the_larger_q_the_more_of_the_step_is_the_worst_clients() -> None:
    def share(q: float) -> float:
        report = QFFL(q=q).aggregate(toy3(), None, LAYOUT).report
        return report["weights"]["3"] / report["weight_sum"]

    shares = [share(q) for q in (0.0, 0.1, 1.0, 2.0, 50.0)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / 3)
    assert shares[2] == pytest.approx(2 / 3.5)
    assert shares[-1] == pytest.approx(1)


def test_longer_displacements_take_shorter_steps_than_their_mean() -> None:
    """The square is that of the whole model's length."""
    (report,) = (QFFL(q=1.0).aggregate(cohort_of([[0.3, 0.4]], losses=[2.0]), None, LAYOUT).report,)
    assert report["weight_sum"] == pytest.approx(1 / (1 + 10 * 0.25 / 2))
