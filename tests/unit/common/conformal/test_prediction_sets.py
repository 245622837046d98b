"""Thresholds keep their promise, and those from histograms are never below the exact ones."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from common.conformal.conformal_replies import (
    EXAMPLES,
    MAX_COUNT,
    CalibrationReply,
    CoverageReply,
    ask,
    read_coverage_request,
)
from common.conformal.prediction_sets import (
    SCORES,
    Outputs,
    Tally,
    aps,
    bin_edges,
    histogram,
    lac,
    min_examples,
    prediction_sets,
    quantile,
    quantile_rank,
    raps,
    softmax,
    threshold,
)
from common.errors import DataError, WireError
from common.rng import stream
from tests.each import for_each

CALIBRATION = np.array(
    [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.45, 0.4, 0.15], [0.25, 0.35, 0.4]]
)
TRUE = np.array([0, 2, 2, 1, 0])
TEST = np.array([[0.5, 0.3, 0.2], [0.8, 0.15, 0.05], [0.34, 0.33, 0.33]])
CARD = [  # score, u, calibration scores of the true labels, q, sets of the three test samples
    ("lac", 1.0, [0.4, 0.7, 0.3, 0.6, 0.75], 0.7, ["01", "0", "012"]),
    ("aps", 1.0, [0.6, 0.8, 0.7, 0.85, 1.0], 0.85, ["01", "0", "01"]),
    ("raps", 1.0, [0.6, 0.9, 0.7, 0.95, 1.2], 0.95, ["01", "0", "01"]),
    ("aps", 0.5, [0.3, 0.65, 0.35, 0.65, 0.875], 0.65, ["01", "0", "01"]),
    ("raps", 0.5, [0.3, 0.75, 0.35, 0.75, 1.075], 0.75, ["01", "0", "01"]),
]


def outputs(s: np.ndarray, u: float = 1.0, k_reg: int = 1, lam: float = 0.1) -> Outputs:
    return Outputs(s, np.full(len(s), u), k_reg, lam)


def spelt(sets: np.ndarray) -> list[str]:
    return ["".join(map(str, np.flatnonzero(row))) for row in sets]


def drawn(samples: int, classes: int, seed: int = 0) -> tuple[Outputs, np.ndarray]:
    """Probabilities of a model that is calibrated, randomised scores, and true labels."""
    rng = stream(seed, "conformal cases", samples, classes)
    s = rng.dirichlet(np.full(classes, 0.4), size=samples)
    labels = (s.cumsum(axis=1) < rng.random((samples, 1))).sum(axis=1)
    return Outputs(s, rng.random(samples), 2, 0.1), np.minimum(labels, classes - 1)


# ---------------------------------------------------------------- scores


@pytest.mark.parametrize(("name", "u", "expected", "q", "sets"), CARD)
def test_the_worked_example(
    name: str, u: float, expected: list[float], q: float, sets: list[str]
) -> None:
    scores = SCORES[name](outputs(CALIBRATION, u))[np.arange(5), TRUE]
    assert_allclose(scores, expected, rtol=0, atol=1e-12)
    assert quantile(scores, 0.4) == pytest.approx(q, abs=1e-12)
    tests = outputs(TEST, u)
    assert spelt(prediction_sets(SCORES[name](tests), quantile(scores, 0.4), tests.top)) == sets


def test_the_worked_example_at_other_levels() -> None:
    scores = aps(outputs(CALIBRATION))[np.arange(5), TRUE]
    assert (quantile_rank(5, 0.2), quantile_rank(5, 0.1)) == (5, 6)
    assert quantile(scores, 0.2) == pytest.approx(1.0, abs=1e-12)
    assert quantile(scores, 0.1) == inf
    tests = outputs(TEST)
    assert spelt(prediction_sets(aps(tests), inf, tests.top)) == ["012"] * 3
    assert_allclose(aps(outputs(TEST[:1])), [[0.5, 0.8, 1.0]], rtol=0, atol=1e-12)
    assert_allclose(raps(outputs(TEST[:1])), [[0.5, 0.9, 1.2]], rtol=0, atol=1e-12)


def test_equal_probabilities_are_ranked_by_label() -> None:
    out = outputs(np.array([[0.25, 0.25, 0.25, 0.25], [0.1, 0.4, 0.1, 0.4]]))
    assert out.ranks.tolist() == [[1, 2, 3, 4], [3, 1, 4, 2]]
    assert out.top.tolist() == [0, 1]
    assert outputs(np.full((1, 100), 0.01)).ranks[0].tolist() == list(range(1, 101))
    assert_allclose(raps(out)[0], [0.25, 0.6, 0.95, 1.3], rtol=0, atol=1e-12)


def test_raps_is_aps_where_nothing_costs() -> None:
    out, _ = drawn(20, 6)
    assert_array_equal(raps(Outputs(out.s, out.u, 1, 0.0)), aps(out))
    assert_array_equal(raps(Outputs(out.s, out.u, 6, 5.0)), aps(out))
    assert (raps(Outputs(out.s, out.u, 5, 5.0)) > aps(out)).sum() == 20


def test_one_draw_a_sample_makes_sets_of_the_likeliest_labels() -> None:
    out, _ = drawn(200, 8)
    along = np.take_along_axis(aps(out), out.order, axis=1)
    assert (np.diff(along, axis=1) >= 0).all()


def test_temperature_divides_the_logits_and_large_ones_do_no_harm() -> None:
    logits = np.array([[2.0, 1.0, -1.0], [800.0, 801.0, 0.0]])
    assert_allclose(softmax(logits, 2.0), softmax(logits / 2))
    assert_allclose(softmax(logits)[1], [0.26894142137, 0.73105857863, 0.0], atol=1e-11)
    assert softmax(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(DataError, match="for 1 of 2 samples are NaN or infinite"):
        softmax(np.array([[0.0, 1.0], [bad, 0.0]]))


# ---------------------------------------------------------------- thresholds


# A public report of this bug: https://github.com/Project-MONAI/MONAI/pull/8938
@pytest.mark.parametrize(
    ("miscoverage", "ranks", "least"),
    [(0.1, {1: 2, 5: 6, 8: 9, 9: 9, 19: 18, 99: 90, 100: 91}, 9),
     (0.05, {1: 2, 5: 6, 8: 9, 9: 10, 18: 19, 19: 19, 100: 96}, 19),
     (0.3, {9: 7, 2: 3, 3: 3}, 3), (0.7, {9: 3}, 1), (0.01, {98: 99, 99: 99}, 99)],
)  # fmt: skip
def test_the_rank_is_exact_and_may_be_beyond_the_last(
    miscoverage: float, ranks: dict[int, int], least: int
) -> None:
    assert {n: quantile_rank(n, miscoverage) for n in ranks} == ranks
    assert min_examples(miscoverage) == least
    for n in (1, 5, 8, 9, 19, 100):
        q = quantile(np.arange(float(n)), miscoverage)
        assert q == (quantile_rank(n, miscoverage) - 1 if n >= least else inf)


def test_nothing_to_calibrate_with_is_refused() -> None:
    for refused in (
        lambda: quantile(np.zeros(0), 0.1),
        lambda: threshold(np.zeros(10, np.int64), np.linspace(0, 1, 11), 0.1),
    ):
        with pytest.raises(DataError, match=r"no calibration samples: set data\.calibration"):
            refused()


def test_scores_that_are_nan_are_refused() -> None:
    scores = np.array([0.1, np.nan, 0.3])
    with pytest.raises(DataError, match="1 of 3 scores are NaN"):
        quantile(scores, 0.5)
    with pytest.raises(DataError, match="expected scores in"):
        histogram(scores, np.linspace(0, 1, 11))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, float("nan")])
def test_levels_outside_of_0_and_1_are_refused(level: float) -> None:
    with pytest.raises(DataError, match="expected 0 < miscoverage < 1"):
        quantile_rank(10, level)


def test_scores_that_are_all_tied_cover_everything() -> None:
    tied = np.full(20, 0.5)
    assert quantile(tied, 0.1) == 0.5
    edges = np.linspace(0, 1, 11)
    assert threshold(histogram(tied, edges), edges, 0.1) == 0.5
    alike = np.full((20, 4), 0.25)
    out = outputs(alike)
    sets = prediction_sets(lac(out), quantile(lac(out)[:, 0], 0.1), out.top)
    assert sets.all()


@for_each("examples", [5, 9, 50])
@for_each("miscoverage", [0.1, 0.05])
@pytest.mark.parametrize("name", SCORES)
def test_coverage_is_what_was_promised(name: str, miscoverage: float, examples: int) -> None:
    """2,000 repeats with exchangeable samples; each has one calibration set and one test sample."""
    repeats = 2000
    out, labels = drawn(repeats * (examples + 1), 5, seed=examples)
    scores = SCORES[name](out)
    true = scores[np.arange(len(labels)), labels].reshape(repeats, examples + 1)
    q = np.array([quantile(row[1:], miscoverage) for row in true])
    coverage = (true[:, 0] <= q + 1e-12).mean()
    if examples < min_examples(miscoverage):
        assert coverage == 1
        return
    spread = 3 * np.sqrt(miscoverage * (1 - miscoverage) / repeats)
    assert 1 - miscoverage - spread <= coverage
    assert coverage <= 1 - miscoverage + 1 / (examples + 1) + spread


# ---------------------------------------------------------------- thresholds from histograms


@given(
    st.lists(st.lists(st.floats(0, 1), max_size=30), min_size=1, max_size=5).filter(any),
    st.sampled_from([0.05, 0.1, 0.2, 0.5, 0.9]),
    st.sampled_from([1, 3, 10, 1000]),
)
def test_pooled_histograms_give_the_exact_threshold_or_up_to_a_bin_more(
    clients: list[list[float]], miscoverage: float, bins: int
) -> None:
    edges = np.linspace(0, 1, bins + 1)
    told = [histogram(np.array(scores), edges) for scores in clients]
    pooled = threshold(np.sum(told, axis=0), edges, miscoverage)
    exact = quantile(np.concatenate([np.array(scores) for scores in clients]), miscoverage)
    assert threshold(np.sum(told[::-1], axis=0), edges, miscoverage) == pooled
    if exact == inf:
        assert pooled == inf
    else:
        assert exact <= pooled <= exact + 1 / bins + 1e-15


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("classes", [2, 7])
def test_every_score_lies_within_the_edges_and_wider_thresholds_hold_the_exact_sets(
    name: str, classes: int
) -> None:
    out, labels = drawn(300, classes)
    edges = bin_edges(name, classes, 50, k_reg=out.k_reg, lam=out.lam)
    scores = SCORES[name](out)
    sure = Outputs(np.eye(classes), np.ones(classes), out.k_reg, out.lam)
    for each in (scores, SCORES[name](sure)):
        counts = histogram(each.ravel(), edges)
        assert (counts.sum(), len(counts)) == (each.size, 50)
    true = scores[np.arange(300), labels]
    for level in (0.05, 0.3):
        exact = prediction_sets(scores, quantile(true, level), out.top)
        wider = prediction_sets(scores, threshold(histogram(true, edges), edges, level), out.top)
        assert not (exact & ~wider).any()


def test_edges_are_even_and_close_in_on_1() -> None:
    assert bin_edges("raps", 10, 4, k_reg=3, lam=0.1)[-1] == pytest.approx(1.7)
    assert bin_edges("raps", 2, 4, k_reg=3, lam=0.1)[-1] == 1.0
    few = bin_edges("lac", 10, 4, k_reg=3, lam=0.1)
    assert_allclose(few, [0, 0.5, 0.9, 1 - 1e-9, 1], rtol=0, atol=1e-15)
    many = bin_edges("aps", 10, 2000, k_reg=3, lam=0.1)
    assert len(many) == 2001
    assert (np.diff(many) >= 0).all()
    assert np.diff(many).max() <= 2 / 2000 + 1e-15
    gaps = 1 - many[(many > 0.9) & (many < 1 - 1e-9)]
    assert (gaps[:-1] / gaps[1:]).max() < 1.02


def test_a_sure_model_does_not_get_sets_of_all_labels() -> None:
    """Its deterministic scores lie within 1e-3 of 1; a coarse bin there lets every label in."""
    rng = stream(0, "a sure model")
    rest = rng.uniform(1e-5, 1e-4, size=(500, 9))
    s = np.column_stack([1 - rest.sum(axis=1), rest])
    out, labels = outputs(s), rng.choice(3, 500, p=[0.8, 0.1, 0.1])
    scores = aps(out)
    true, edges = scores[np.arange(500), labels], bin_edges("aps", 10, 2000, k_reg=1, lam=0.0)
    sizes = [
        prediction_sets(scores, q, out.top).sum(axis=1).mean()
        for q in (quantile(true, 0.1), threshold(histogram(true, edges), edges, 0.1))
    ]
    assert sizes[0] < 9
    assert sizes[1] - sizes[0] < 0.2


def test_an_edge_belongs_to_the_bin_below_it() -> None:
    edges = np.linspace(0, 1, 5)
    assert histogram(np.array([0.0, 0.25, 0.250001, 1.0]), edges).tolist() == [2, 1, 0, 1]
    with pytest.raises(DataError, match="expected scores in"):
        histogram(np.array([1.1]), edges)


# ---------------------------------------------------------------- sets and their counts


def test_a_set_that_would_be_empty_holds_the_likeliest_label() -> None:
    out = outputs(TEST)
    assert spelt(prediction_sets(lac(out), -1.0, out.top)) == ["0", "0", "0"]
    assert spelt(prediction_sets(lac(out), 0.5, out.top)) == ["0", "0", "0"]


def test_a_threshold_that_rounding_made_a_hair_smaller_counts_as_equal() -> None:
    out = outputs(np.array([[0.45, 0.4, 0.15]]))
    assert spelt(prediction_sets(aps(out), 0.85 - 1e-15, out.top)) == ["01"]


def test_sets_are_counted_by_size() -> None:
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]], dtype=bool)
    tally = Tally.of(sets, np.array([0, 1, 0, 2]))
    assert (tally.sizes.tolist(), tally.covered.tolist()) == ([0, 1, 2, 1], [0, 1, 1, 1])
    assert (tally.examples, tally.coverage, tally.mean_size) == (4, 0.75, 2.0)
    assert tally.coverage_by_size == [None, 1.0, 0.5, 1.0]
    twice = sum([tally, tally], Tally.none(3))
    assert (twice.sizes.tolist(), twice.coverage) == ([0, 2, 4, 2], 0.75)


def test_no_sets_have_no_coverage() -> None:
    for nothing in (Tally.none(3), Tally.of(np.zeros((0, 3), bool), np.zeros(0, np.int64))):
        assert (nothing.examples, nothing.coverage, nothing.mean_size) == (0, None, None)
        assert nothing.coverage_by_size == [None] * 4


def test_a_client_with_one_class_is_counted_like_others() -> None:
    out, _ = drawn(30, 4)
    labels = np.full(30, 2)
    for name, score in SCORES.items():
        scores = score(out)
        edges = bin_edges(name, 4, 100, k_reg=out.k_reg, lam=out.lam)
        true = scores[np.arange(30), labels]
        q = threshold(histogram(true, edges), edges, 0.1)
        coverage = Tally.of(prediction_sets(scores, q, out.top), labels).coverage
        assert coverage is not None
        assert coverage >= 0.9


# ---------------------------------------------------------------- what travels


def replies() -> tuple[CalibrationReply, CoverageReply]:
    out, labels = drawn(12, 3)
    counts, tallies = {}, {}
    for name, score in SCORES.items():
        edges = bin_edges(name, 3, 5, k_reg=out.k_reg, lam=out.lam)
        counts[name] = histogram(score(out)[np.arange(12), labels], edges)
        tallies[name] = [
            Tally.of(prediction_sets(score(out), q, out.top), labels) for q in (0.5, inf)
        ]
    return CalibrationReply(12, counts), CoverageReply(12, 7, tallies)


def test_tables_are_read_as_they_were_written() -> None:
    calibration, coverage = replies()
    assert CalibrationReply.read(calibration.table(), 5).table() == calibration.table()
    assert CoverageReply.read(coverage.table(), 2, 3).table() == coverage.table()
    thresholds = {name: [0.1, inf] for name in SCORES}
    assert read_coverage_request(ask(thresholds)) == thresholds


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"examples": 11}, "12 scores of lac were counted on 11 samples"),
        ({"examples": -1}, 'expected "examples" as a whole number from 0 to 1099511627776, got -1'),
        ({"examples": 12.0}, 'expected "examples" as a whole number'),
        ({"examples": True}, 'expected "examples" as a whole number'),
        ({"counts.aps": [12, 0, 0, 0]}, 'expected "counts.aps" as 5 whole numbers'),
        ({"counts.aps": [13, -1, 0, 0, 0]}, 'expected "counts.aps" as 5 whole numbers'),
        ({"counts.aps": [12.0, 0, 0, 0, 0]}, 'expected "counts.aps" as 5 whole numbers'),
        ({"counts.aps": [2**70, 0, 0, 0, 0]}, 'expected "counts.aps" as 5 whole numbers'),
        ({"counts.raps": "12"}, 'expected "counts.raps" as a list'),
    ],
)
def test_counts_of_scores_that_cannot_be_are_refused(
    change: dict[str, object], reason: str
) -> None:
    table = replies()[0].table()
    with pytest.raises(WireError, match=reason):
        CalibrationReply.read({**table, **change}, 5)


def test_counts_that_only_add_up_by_going_round_are_refused() -> None:
    """2,048 times 2^53 is 0 in 64 bits: as many scores as the client says it has samples."""
    bins = 2048
    table = {EXAMPLES: 0, **{f"counts.{score}": [2**53] * bins for score in SCORES}}
    with pytest.raises(WireError, match=r"whole numbers from 0 to"):
        CalibrationReply.read(table, bins)
    assert 100_000 * MAX_COUNT < 2**63  # a sum over the most bins, or the most clients, holds it


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"correct": 13}, "13 correct answers of 12 are impossible"),
        ({"sizes.lac": [0, 12, 0, 0, 0, 0, 0, 11]}, "that were counted are not 12 a level"),
        ({"sizes.lac": [12, 0, 0, 0, 0, 0, 0, 12]}, "than there are, or none"),
        ({"covered.lac": [0, 0, 0, 0, 0, 0, 0, 13]}, "more sets of lac hold the true label"),
        ({"covered.lac": [0] * 7}, 'expected "covered.lac" as 8 whole numbers'),
    ],
)
def test_counts_of_sets_that_cannot_be_are_refused(change: dict[str, object], reason: str) -> None:
    table = replies()[1].table()
    with pytest.raises(WireError, match=reason):
        CoverageReply.read({**table, **change}, 2, 3)


@pytest.mark.parametrize("value", [None, 0.5, [0.5, "a"], [float("nan")]])
def test_thresholds_that_are_no_numbers_are_refused(value: object) -> None:
    with pytest.raises(WireError, match=r'expected "thresholds\.aps"'):
        read_coverage_request({**ask({name: [0.5] for name in SCORES}), "thresholds.aps": value})
