"""FedLF serves every client in every layer, absent ones too, and leans toward the larger losses."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import nnls

from common.client_vectors import ClientVectors
from common.layout import Layout, Tensor
from common.methods import FedLF, fedlf
from common.methods.fedlf import Layer, fair_weights, merged, shortened
from common.rng import stream
from common.types import LOSS_BEFORE, Cohort, Matrix, Vector
from tests.builders import (
    EXACT,
    LR,
    TOY3,
    TOY3_EXAMPLES,
    TOY3_LOSSES,
    assert_same,
    cohort_of,
    layout_of_size,
)  # fmt: skip
from tests.each import for_each

FAIR = (-0.167984210226, -0.083992105113, 0.083992105113)
NOBODY = ClientVectors()


def layout(*sizes: int) -> Layout:
    """One module of one tensor for each size."""
    return Layout(tuple(Tensor(f"{k}.weight", (size,)) for k, size in enumerate(sizes)))


def toy3() -> Cohort:
    return cohort_of(TOY3, TOY3_EXAMPLES, losses=TOY3_LOSSES)


def random_cohort(seed: int, m: int, d: int, **more: object) -> Cohort:
    rng = stream(seed, "fedlf", m, d)
    rows = rng.normal(size=(m, d)) + 0.3 * rng.normal(size=d)
    return cohort_of(rows, losses=rng.uniform(0.1, 3.0, size=m).tolist(), **more)


def book(
    rows: Matrix, absent: Matrix, losses: Sequence[float], spans: Sequence[slice]
) -> tuple[Vector, list[Matrix]]:
    """The card's steps 1 to 6 as they stand: the direction, and V of each layer.

    In gradients or in displacements alike; layers are large enough not to vanish.
    """
    F, m = np.array(losses), len(rows)
    e = np.full(m, 1 / np.sqrt(m))
    length = np.linalg.norm(F)
    h = ((F @ e) * F / length - e * length) / length**2
    d, stacks = np.zeros(rows.shape[1]), []
    for span in spans:
        lengths = np.linalg.norm(rows[:, span], axis=1, keepdims=True)
        mu = lengths.mean()
        own = rows[:, span] / lengths * mu
        fair = h @ own
        old = absent[:, span] / np.linalg.norm(absent[:, span], axis=1, keepdims=True) * mu
        V = np.vstack([own, fair[None] / np.linalg.norm(fair) * mu, old])
        # min |V^T x|^2 + (sum x - 1)^2 over x >= 0 has lambda's ratios, whatever its sum
        pulls = nnls(np.vstack([V.T, np.ones(len(V))]), np.append(np.zeros(V.shape[1]), 1.0))[0]
        d[span] = pulls / pulls.sum() @ V
        stacks.append(V)
    return d / np.linalg.norm(d) * np.linalg.norm(rows.mean(axis=0)), stacks


# ---------------------------------------------------------------- the card's numbers


def test_toy3_as_one_layer() -> None:
    assert_allclose(fair_weights(np.array(TOY3_LOSSES)), FAIR, **EXACT)
    step = FedLF().aggregate(toy3(), NOBODY, layout(2))
    assert_allclose(step.direction / LR, (-0.738697437800, 1.530756343863), **EXACT)
    assert_allclose(1 - step.direction, (1.073869743780, 0.846924365614), **EXACT)
    gains = TOY3 @ step.direction / LR**2
    assert_allclose(gains, (0.053361468262, 3.853571593788, 3.008151219463), **EXACT)
    assert step.report["fair"]


def test_two_layers_that_vanish_become_one() -> None:
    step = FedLF().aggregate(toy3(), NOBODY, layout(1, 1))
    assert_allclose(1 - step.direction, (1.073869743780, 0.846924365614), **EXACT)
    assert step.report["layers"] == 1


def test_two_layers_of_two() -> None:
    """The d before it is stretched is small here, so the digits are fewer."""
    g = np.array([(2, 1, 1, 0), (1, 3, 1, 1), (-2, 1, 0, 2)])
    cohort = cohort_of(LR * g, TOY3_EXAMPLES, losses=TOY3_LOSSES)
    step = FedLF().aggregate(cohort, NOBODY, layout(2, 2))
    expected = (1.037183921644, 0.922946092630, 0.989778619079, 0.810503540890)
    assert_allclose(1 - step.direction, expected, rtol=0, atol=1e-6)
    d = step.direction / step.report["stretch"] / LR
    expected = (-0.015528623252, 0.032178991476, 0.004268618853, 0.079136868597)
    assert_allclose(d, expected, rtol=0, atol=1e-6)
    assert step.report["layers"] == 2


@pytest.mark.parametrize(
    ("lost", "edges"),
    [
        ((), [0, 1, 2, 3, 4]),
        ((0,), [0, 2, 3, 4]),
        ((1,), [0, 1, 3, 4]),
        ((3,), [0, 1, 2, 4]),
        ((0, 1), [0, 3, 4]),
        ((2, 3), [0, 1, 4]),
        ((0, 1, 2, 3), [0, 4]),
    ],
)
def test_a_layer_that_vanishes_joins_the_next_and_the_last_the_one_before(
    lost: tuple[int, ...], edges: list[int]
) -> None:
    """Two clients that agree everywhere but in the lost layers, where they cancel."""
    products = [np.array([[1.0, -1.0], [-1.0, 1.0]]) if k in lost else np.ones((2, 2))
                for k in range(4)]  # fmt: skip
    nothing = np.zeros(2)
    layers = [Layer.solved(slice(k, k + 1), gram, nothing) for k, gram in enumerate(products)]
    left = merged(layers, nothing)
    assert [0, *(layer.span.stop for layer in left)] == edges
    for layer in left:
        assert_allclose(layer.products, sum(products[layer.span]), **EXACT)


# ---------------------------------------------------------------- promises


@pytest.mark.parametrize("seed", range(10))
def test_it_is_the_cards_steps_with_absent_clients(seed: int) -> None:
    parts = layout(30, 25, 40)
    first = random_cohort(seed, 4, 95, names=list("abcd"), round=1)
    second = random_cohort(seed, 3, 95, names=list("xyz"), round=2, lr=0.05)
    state = FedLF().aggregate(first, NOBODY, parts).state
    step = FedLF().aggregate(second, state, parts)
    old, new = (np.array([u.delta for u in c.updates]) for c in (first, second))
    direction, stacks = book(new, old, second.metric(LOSS_BEFORE), list(parts.spans.values()))
    assert step.report["absent"] == 4
    assert_allclose(step.direction, direction, **EXACT)
    d = step.direction / step.report["stretch"]
    for V, span in zip(stacks, parts.spans.values(), strict=True):
        assert (V @ d[span] >= d[span] @ d[span] - 1e-9).all()


@for_each("released", [False, True])
@for_each("seed", range(10))
def test_nobody_loses_and_the_length_is_the_uniform_means(seed: int, released: bool) -> None:
    cohort = random_cohort(seed, 6, 60)
    step = FedLF(released=released).aggregate(cohort, NOBODY, layout(20, 40))
    rows = np.array([update.delta for update in cohort.updates])
    assert (rows @ step.direction > 0).all()
    length = np.linalg.norm(rows.mean(axis=0))
    assert np.linalg.norm(step.direction) == pytest.approx(length, rel=1e-9)


def test_the_local_rate_of_any_round_cancels() -> None:
    """Gradients of unit rate and displacements of small ones give the same model."""
    ends = []
    for early, late in ((0.1, 0.1), (0.7, 0.1)):
        first = random_cohort(1, 4, 60, names=list("abcd"), lr=early)
        second = random_cohort(2, 3, 60, names=list("xyz"), round=2, lr=late)
        scaled = cohort_of(
            [update.delta * early for update in first.updates],
            names=list("abcd"),
            losses=first.metric(LOSS_BEFORE).tolist(),
            lr=early,
        )
        state = FedLF().aggregate(scaled, NOBODY, layout(60)).state
        ends.append(FedLF().aggregate(second, state, layout(60)).direction)
    assert_allclose(ends[0], ends[1], **EXACT)


@pytest.mark.parametrize(("age", "absent"), [(1, 2), (2, 2), (3, 0), (50, 0)])
def test_an_absent_client_counts_for_as_many_rounds_as_cohorts_have_been_seen(
    age: int, absent: int
) -> None:
    """Four clients seen, two in the round: tau is 2."""
    state = FedLF().aggregate(random_cohort(0, 2, 9, names=["a", "b"]), NOBODY, layout(9)).state
    cohort = random_cohort(1, 2, 9, names=["c", "d"], round=1 + age)
    step = FedLF().aggregate(cohort, state, layout(9))
    assert step.report["absent"] == absent
    assert list(step.state.entries) == ["a", "b", "c", "d"]
    alone = FedLF().aggregate(cohort, NOBODY, layout(9))
    assert np.array_equal(step.direction, alone.direction) == (absent == 0)


def test_a_round_with_fewer_replies_reaches_further_back() -> None:
    """So nothing that was ever seen is thrown away."""
    state = FedLF().aggregate(random_cohort(0, 4, 9), NOBODY, layout(9)).state
    two = random_cohort(1, 2, 9, names=["1", "2"], round=4)
    one = random_cohort(1, 1, 9, names=["1"], round=4)
    assert FedLF().aggregate(two, state, layout(9)).report["absent"] == 0
    assert FedLF().aggregate(one, state, layout(9)).report["absent"] == 3


def test_a_client_that_returns_is_not_beside_its_older_self() -> None:
    first = random_cohort(0, 3, 9)
    state = FedLF().aggregate(first, NOBODY, layout(9)).state
    again = random_cohort(1, 3, 9, round=2)
    step = FedLF().aggregate(again, state, layout(9))
    assert step.report["absent"] == 0
    assert_same(step.direction, FedLF().aggregate(again, NOBODY, layout(9)).direction)
    kept = step.state.entries["1"]
    assert (kept.round, kept.vector is again.updates[0].delta) == (2, True)


# ---------------------------------------------------------------- the fair row


@pytest.mark.parametrize("seed", range(10))
def test_the_fair_weights_are_the_gradient_of_the_angle(seed: int) -> None:
    F = stream(seed, "losses").uniform(0.1, 5.0, size=6)
    nudge = 1e-6 * np.eye(6)

    def cosine(losses: Vector) -> Vector:
        return losses.sum(axis=-1) / np.linalg.norm(losses, axis=-1) / np.sqrt(6)

    slope = -(cosine(F + nudge) - cosine(F - nudge)) / 2e-6
    assert_allclose(fair_weights(F), slope, rtol=0, atol=1e-8)
    assert fair_weights(F)[F.argmax()] > 0 > fair_weights(F)[F.argmin()]


@pytest.mark.parametrize("losses", [(1.3, 1.3, 1.3), (1.3, 1.3 + 1e-7, 1.3), (0.0, 0.0, 0.0)])
def test_equal_losses_add_no_row(losses: tuple[float, ...]) -> None:
    cohort = cohort_of([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], losses=losses)
    step = FedLF().aggregate(cohort, NOBODY, layout(2))
    assert not step.report["fair"]
    assert_allclose(step.direction, np.full(2, np.sqrt(2) * np.hypot(1, 1) / 2), **EXACT)


def test_a_fair_row_that_cancels_adds_nothing() -> None:
    """Clients that agree, with losses that nearly do: h adds up to almost zero, below zero."""
    losses = (1.0, 1.0, 1.0 + 1e-5)
    assert -1e-9 < fair_weights(np.array(losses)).sum() < 0
    step = FedLF().aggregate(cohort_of([[1.0, 0.0]] * 3, losses=losses), NOBODY, layout(2))
    assert step.report["fair"]
    assert_allclose(step.direction, (1.0, 0.0), **EXACT)


# ---------------------------------------------------------------- odd cohorts


@pytest.mark.parametrize("released", [False, True])
def test_one_client_without_history_moves_the_model_by_its_own(released: bool) -> None:
    """Where the published code crashes."""
    row = stream(0, "one").normal(size=7)
    step = FedLF(released=released).aggregate(cohort_of([row]), NOBODY, layout(3, 4))
    assert_allclose(step.direction, row, rtol=1e-12)


@pytest.mark.parametrize("released", [False, True])
def test_a_client_that_left_a_layer_alone_is_left_out_of_it(released: bool) -> None:
    """Where the published code divides by zero; its length still counts for mu."""
    rows = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    step = FedLF(released=released).aggregate(cohort_of(rows), NOBODY, layout(2, 2))
    d = np.array([0.5, 0.5, 0.5, 0.0])
    length = np.linalg.norm(rows.mean(axis=0))
    assert_allclose(step.direction, d / np.linalg.norm(d) * length, **EXACT)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_layer_that_nobody_moved_stays_and_changes_nothing_elsewhere(at: int) -> None:
    cohort = random_cohort(3, 4, 50)
    spread = [np.insert(update.delta, [25 * at] * 5, 0.0) for update in cohort.updates]
    losses = cohort.metric(LOSS_BEFORE).tolist()
    sizes = [25, 25]
    sizes.insert(at, 5)
    plain = FedLF().aggregate(cohort, NOBODY, layout(25, 25)).direction
    step = FedLF().aggregate(cohort_of(spread, losses=losses), NOBODY, layout(*sizes))
    assert_allclose(step.direction, np.insert(plain, [25 * at] * 5, 0.0), **EXACT)


@pytest.mark.parametrize("released", [False, True])
def test_clients_that_pull_against_each_other_in_everything_make_no_step(released: bool) -> None:
    rows = np.array([[1.0, 2.0, -1.0], [-1.0, -2.0, 1.0]], np.float32)
    step = FedLF(released=released).aggregate(cohort_of(rows), NOBODY, layout(1, 2))
    assert_array_equal(step.direction, np.zeros(3, np.float32))


def test_a_bias_with_more_clients_than_entries_is_merged_and_not_lost() -> None:
    """Weight and bias of one module are one layer; a module that vanishes joins the next."""
    rng = stream(2, "bias")
    rows = np.hstack([rng.normal(size=(11, 3)), rng.normal(size=(11, 200)) + 0.2])
    tensors = (Tensor("a.bias", (3,)), Tensor("b.weight", (190,)), Tensor("b.bias", (10,)))
    step = FedLF().aggregate(cohort_of(rows), NOBODY, Layout(tensors))
    assert step.report["layers"] == 1
    assert (rows @ step.direction > 0).all()
    apart = FedLF(released=True).aggregate(cohort_of(rows), NOBODY, Layout(tensors))
    assert apart.report["layers"] == 3
    assert_array_equal(apart.direction[:3], np.zeros(3))


# ---------------------------------------------------------------- as in the published code


def test_released_takes_one_full_batch_step_and_merges_nothing() -> None:
    assert FedLF(released=True).local_rule({}, layout(2)).full_batch
    assert not FedLF().local_rule({}, layout(2)).full_batch
    step = FedLF(released=True).aggregate(toy3(), NOBODY, layout(1, 1))
    assert step.report["layers"] == 2
    assert_array_equal(step.direction, np.zeros(2))


def test_released_looks_at_the_worst_gain_in_gradient_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TOY3's first client: g . d is 0.053 after the stretch by 47.6."""
    seen = []
    monkeypatch.setattr(fedlf, "shortened", lambda scale, loss: seen.append((scale, loss)) or 1.0)
    step = FedLF(released=True).aggregate(toy3(), NOBODY, layout(2))
    ((scale, loss),) = seen
    assert loss == pytest.approx(-0.053361468262 / scale, abs=1e-9)
    assert scale == pytest.approx(47.57005343)
    assert_allclose(step.direction / LR, (-0.015528623252, 0.032178991476), **EXACT)


@pytest.mark.parametrize(
    ("scale", "loss", "expected"),
    [
        (10.0, -1.0, 10.0),  # everybody gains
        (10.0, 1e-8, 10.0),  # a loss that is tolerated at that length
        (1000.0, 2e-8, 31.25),  # five halvings make it so
        (10.0, 1.0, 1.0),  # 5, 2.5, 1.25: shorter than twice the unscaled d, so that is restored
        (3.0, 4e-7, 1.5),
        (1.5, 1.0, 1.0),
        (0.5, 1.0, 1.0),  # the code lengthens it, too
    ],
)
def test_released_shortens_what_a_client_loses_by(
    scale: float, loss: float, expected: float
) -> None:
    assert shortened(scale, loss) == expected


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_the_unit_of_the_losses_does_not_count(scale: float) -> None:
    layout = layout_of_size(2)
    one, other = (
        FedLF().aggregate(
            cohort_of(TOY3, losses=[unit * loss for loss in TOY3_LOSSES]), ClientVectors(), layout
        )
        for unit in (1.0, scale)
    )
    assert one.report["fair"]
    assert_allclose(other.direction, one.direction, rtol=1e-9)
