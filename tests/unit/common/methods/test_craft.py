"""CRAFT gives every client its share of progress in every layer, and keeps near its last step."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.layout import Layout, Tensor
from common.methods import Craft
from common.methods.craft import LastDirection
from common.rng import stream
from common.types import Cohort, Step
from tests.builders import EXACT, TOY3, TOY3_EXAMPLES, assert_same, cohort_of

OPPOSED = np.array([(0.2, 0.1), (-0.2, 0.1)])
SPACE = np.array([(0.2, 0.1, 0.0), (0.1, 0.3, 0.1), (-0.2, 0.1, 0.2)])


def layout(*sizes: int) -> Layout:
    """One module of one tensor for each size."""
    return Layout(tuple(Tensor(f"{k}.weight", (size,)) for k, size in enumerate(sizes)))


def first(cohort: Cohort, parts: Layout, method: Craft | None = None) -> Step[LastDirection]:
    """Round 1."""
    method = method or Craft()
    return method.aggregate(cohort, method.init(parts), parts)


def random_cohort(seed: int, m: int, d: int, **more: object) -> Cohort:
    rng = stream(seed, "craft", m, d)
    rows = rng.normal(size=(m, d)) * 10.0 ** rng.uniform(-3, 3, size=(m, 1))
    return cohort_of(rows, rng.integers(1, 50, size=m).tolist(), **more)


# ---------------------------------------------------------------- the card's numbers


def test_two_opposed_clients_in_one_layer() -> None:
    cohort, parts = cohort_of(OPPOSED), layout(2)
    one = first(cohort, parts)
    assert_allclose(one.state.direction, (0, 1.118033988750), **EXACT)
    assert_allclose(1 - one.direction, (1, 0.888196601125), **EXACT)
    two = Craft().aggregate(cohort, one.state, parts)
    assert_allclose(two.state.direction, one.state.direction, **EXACT)


def test_the_same_clients_in_two_layers() -> None:
    """In the first they ask for the impossible; half-way between is no step there."""
    step = first(cohort_of(OPPOSED), layout(1, 1))
    assert_allclose(step.state.direction, (0, 0.5), **EXACT)
    assert step.report == {"layers": 2, "unmet": 1}


def test_toy3_has_more_clients_than_coordinates() -> None:
    step = first(cohort_of(TOY3, TOY3_EXAMPLES), layout(2))
    assert_allclose(step.state.direction, (0.138141076112, 0.427855525717), **EXACT)
    units = TOY3 / np.linalg.norm(TOY3, axis=1)[:, None]
    reached = (0.314899942679, 0.449583435120, 0.067785673342)
    assert_allclose(units @ step.state.direction, reached, **EXACT)
    assert step.report["unmet"] == 1


def test_three_clients_in_space_and_two_of_them_again() -> None:
    parts = layout(3)
    one = first(cohort_of(SPACE, (50, 30, 20)), parts)
    expected = (0.700032511589, -0.282031034429, 1.141048028804)
    assert_allclose(one.state.direction, expected, **EXACT)
    units = SPACE / np.linalg.norm(SPACE, axis=1)[:, None]
    assert_allclose(units @ one.state.direction, (0.5, 0.3, 0.2), **EXACT)
    r = one.state.direction / np.linalg.norm(one.state.direction)
    assert_allclose(r, (0.511698669905, -0.206154575395, 0.834065202644), **EXACT)
    two = Craft().aggregate(cohort_of(SPACE[[0, 2]], (70, 30), round=2), one.state, parts)
    expected = (0.709764553192, 0.145718477865, 1.086905314260)
    assert_allclose(two.state.direction, expected, **EXACT)


# ---------------------------------------------------------------- promises


@pytest.mark.parametrize("seed", range(10))
def test_each_layer_is_the_cards_formula_with_numpys_own_pseudo_inverse(seed: int) -> None:
    parts = layout(3, 30, 8)
    before = random_cohort(seed, 5, 41)
    now = random_cohort(seed + 100, 6, 41, round=2)
    state = first(before, parts).state
    step = Craft().aggregate(now, state, parts)
    rows = np.array([update.delta for update in now.updates])
    for span in parts.spans.values():
        U = rows[:, span] / np.linalg.norm(rows[:, span], axis=1)[:, None]
        r = state.direction[span] / np.linalg.norm(state.direction[span])
        d = r + np.linalg.pinv(U) @ (now.shares - U @ r)
        assert_allclose(step.state.direction[span], d, **EXACT)
    assert step.report == {"layers": 3, "unmet": 1}  # six clients in three coordinates
    assert_allclose(step.direction, 0.1 * step.state.direction, rtol=1e-15)


@pytest.mark.parametrize("seed", range(10))
def test_clients_get_their_shares_by_the_shortest_way_from_the_last_direction(seed: int) -> None:
    parts = layout(40)
    state = first(random_cohort(seed, 5, 40), parts).state
    now = random_cohort(seed + 50, 7, 40, round=2)
    d = Craft().aggregate(now, state, parts).state.direction
    rows = np.array([update.delta for update in now.updates])
    U = rows / np.linalg.norm(rows, axis=1)[:, None]
    assert_allclose(U @ d, now.shares, **EXACT)
    r = state.direction / np.linalg.norm(state.direction)
    sideways = stream(seed, "sideways").normal(size=40)
    sideways -= np.linalg.pinv(U) @ (U @ sideways)
    assert (d - r) @ sideways == pytest.approx(0, abs=1e-9)


def test_no_displacements_length_counts_and_no_learning_rate() -> None:
    parts = layout(3)
    plain = first(cohort_of(SPACE, (5, 3, 2)), parts)
    scales = np.array([[1e-9], [1.0], [1e9]])
    scaled = first(cohort_of(scales * SPACE, (5, 3, 2), lr=7.0), parts)
    assert_allclose(scaled.direction, plain.direction, rtol=1e-9)


def test_eta_moves_the_model_and_not_the_memory() -> None:
    cohort, parts = cohort_of(SPACE), layout(3)
    small, large = (first(cohort, parts, Craft(eta=eta)) for eta in (0.1, 1.0))
    assert_same(small.state, large.state)
    assert_allclose(10 * small.direction, large.direction, rtol=1e-12)


def test_a_normalisation_is_solved_with_the_layer_before_it() -> None:
    tensors = (
        Tensor("conv.weight", (2, 1)),
        Tensor("norm.weight", (1,)),
        Tensor("norm.bias", (1,)),
    )
    rows = stream(0, "norm").normal(size=(3, 4))
    together = first(cohort_of(rows), Layout(tensors)).state.direction
    assert_allclose(together, first(cohort_of(rows), layout(4)).state.direction, rtol=1e-12)


# ---------------------------------------------------------------- odd cohorts


def test_one_client_alone_is_followed_as_it_is() -> None:
    """Not at unit length: the published code's mix of units. The last direction does not count."""
    parts, row = layout(1, 2), np.array([3.0, 0.25, -0.5])
    state = first(cohort_of(SPACE), parts).state
    step = Craft().aggregate(cohort_of([row], round=2), state, parts)
    assert_array_equal(step.state.direction, row)
    assert_allclose(step.direction, 0.1 * row, rtol=1e-15)


def test_a_client_that_left_a_layer_alone_is_left_out_of_it() -> None:
    """With its share given to the others; one that is left is followed as it is."""
    rows = np.array([[0.2, 0.1, 5.0], [-0.2, 0.1, 0.0], [0.0, 0.0, 0.0]])
    step = first(cohort_of(rows, (1, 1, 8)), layout(2, 1))
    assert_allclose(step.state.direction, (0, 1.118033988750, 5.0), **EXACT)


def test_a_layer_that_nobody_moved_stays_and_forgets_its_direction() -> None:
    parts = layout(3, 2)
    rows = np.hstack([SPACE, stream(1, "two").normal(size=(3, 2))])
    state = first(cohort_of(rows), parts).state
    assert state.direction[3:].any()
    rows[:, 3:] = 0.0
    step = Craft().aggregate(cohort_of(rows, round=2), state, parts)
    assert_array_equal(step.state.direction[3:], np.zeros(2))
    assert step.state.direction[:3].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clients_that_are_alike_are_one_client_with_all_the_examples(dtype: type) -> None:
    """The Gram matrix is singular; the dues of such clients are met on average."""
    rows = np.repeat(SPACE, 4, axis=0).astype(dtype)
    step = first(cohort_of(rows), layout(3))
    few = first(cohort_of(SPACE), layout(3)).state.direction
    assert_allclose(step.state.direction, few / 4, rtol=1e-5 if dtype is np.float32 else 1e-9)
    assert step.state.direction.dtype == dtype
