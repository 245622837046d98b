"""Numbers over seeds, rounds and clients: what is undefined is absent, and pairs stay pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.fairness import fairness
from common.rng import stream
from common.statistics import (
    STATISTICS,
    area_under_curve,
    mean_curve,
    paired_difference,
    summarise_seeds,
)

EXAMPLE = (90, 80, 70, 60, 50, 40, 85, 75, 65, 55)  # the metrics' worked example, in %


def as_clients(values: "np.ndarray | tuple[float, ...]") -> dict[str, float]:
    return {str(index): float(value) for index, value in enumerate(values)}


def test_the_worked_example_of_the_metrics() -> None:
    found = fairness({str(i): (value, 100) for i, value in enumerate(EXAMPLE)})
    assert found is not None
    assert found.mean == pytest.approx(0.67)
    assert found.spread == pytest.approx(0.15198684153571, abs=1e-12)
    assert found.worst10 == pytest.approx(0.40)
    assert found.jain == pytest.approx(0.951059322034, abs=1e-12)
    assert found.jain == pytest.approx(1 / (1 + (found.spread / found.mean) ** 2))
    assert np.arccos(np.sqrt(found.jain)) == pytest.approx(0.223070826136, abs=1e-11)
    values = np.array(EXAMPLE) / 100
    assert float(STATISTICS["mean"](values)) == pytest.approx(found.mean)
    assert float(STATISTICS["worst10"](values)) == pytest.approx(found.worst10)


def test_over_seeds_leaves_out_what_is_undefined() -> None:
    found = summarise_seeds([0.5, None, 0.75])
    assert found is not None
    assert (found.mean, found.low, found.high, found.seeds) == (0.625, 0.5, 0.75, 2)
    assert summarise_seeds([None]) is None
    assert summarise_seeds([]) is None


def test_the_area_is_the_mean_height_and_does_not_depend_on_how_often_a_line_is_looked_at() -> None:
    assert area_under_curve([(1, 0.0), (3, 1.0)]) == pytest.approx(0.5)
    assert area_under_curve([(1, 0.0), (2, 0.5), (3, 1.0)]) == pytest.approx(0.5)
    assert area_under_curve([(10, 0.25), (30, 0.25)]) == pytest.approx(0.25)
    assert area_under_curve([(0, 0.0), (10, 1.0), (40, 1.0)]) == pytest.approx(35 / 40)
    assert area_under_curve([(5, 0.5)]) is None
    assert area_under_curve([]) is None


def test_a_mean_curve_has_the_rounds_that_all_seeds_have() -> None:
    curves = [[(5, 0.2), (10, 0.4)], [(10, 0.6), (15, 0.7)]]
    assert mean_curve(curves) == [(10, 0.5)]
    assert mean_curve([]) == []


def test_a_difference_that_is_the_same_for_every_client_has_no_width() -> None:
    theirs = {seed: as_clients(stream(seed, "x").random(20) / 2) for seed in (1, 2, 3)}
    ours = {seed: {c: v + 0.1 for c, v in table.items()} for seed, table in theirs.items()}
    for statistic in STATISTICS:
        found = paired_difference(ours, theirs, statistic)
        assert found is not None
        assert (found.seeds, found.clients) == (3, 60)
        assert found.value == pytest.approx(0.1)
        assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.1))
        assert found.is_clear


@pytest.mark.parametrize("clients", [1, 2, 30])
def test_one_seed_whose_clients_differ_by_the_same_number_makes_nothing_clear(clients: int) -> None:
    theirs = {1: as_clients(stream(1, "x").random(clients) / 2)}
    ours = {1: {c: v + 0.1 for c, v in theirs[1].items()}}
    for statistic in STATISTICS:
        found = paired_difference(ours, theirs, statistic)
        assert found is not None
        assert found.low == pytest.approx(found.high) == pytest.approx(0.1)
        assert not found.is_clear


def test_pairs_are_by_client_and_not_by_place() -> None:
    theirs = {1: {"a": 0.0, "b": 1.0, "only theirs": 0.3}}
    ours = {1: {"b": 1.0, "a": 0.0, "only ours": 0.9}, 2: {"a": 1.0}}
    found = paired_difference(ours, theirs, "mean")
    assert found is not None
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert (found.seeds, found.clients) == (1, 2)
    assert not found.is_clear


def test_nothing_in_common_is_undefined() -> None:
    assert paired_difference({1: {"a": 1.0}}, {2: {"a": 1.0}}, "mean") is None
    assert paired_difference({1: {"a": 1.0}}, {1: {"b": 1.0}}, "mean") is None
    assert paired_difference({}, {}, "mean") is None


@given(st.integers(0, 2**32))
def test_the_other_way_round_only_the_sign_changes(seed: int) -> None:
    first, second = (as_clients(stream(seed, "values", k).random(7)) for k in range(2))
    for statistic in STATISTICS:
        there = paired_difference({1: first}, {1: second}, statistic, repeats=50)
        back = paired_difference({1: second}, {1: first}, statistic, repeats=50)
        assert there is not None
        assert back is not None
        assert there.value == pytest.approx(-back.value, abs=1e-12)
        assert (there.low, there.high) == (
            pytest.approx(-back.high, abs=1e-12),
            pytest.approx(-back.low, abs=1e-12),
        )


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Clients drawn at random, true difference of the means 0.05; 95 % promised."""
    hits, trials, width = 0, 300, []
    for trial in range(trials):
        rng = stream(trial, "coverage")
        theirs = rng.normal(0.5, 0.1, size=60)
        ours = theirs + rng.normal(0.05, 0.05, size=60)
        found = paired_difference(
            {1: as_clients(ours)}, {1: as_clients(theirs)}, "mean", repeats=300
        )
        assert found is not None
        hits += found.low <= 0.05 <= found.high
        width.append(found.high - found.low)
    assert 0.90 <= hits / trials <= 0.99
    # paired: the spread of the differences counts (0.05), not that of the accuracies (0.1)
    assert np.mean(width) == pytest.approx(2 * 1.96 * 0.05 / np.sqrt(60), rel=0.15)


def test_seeds_that_disagree_widen_the_interval() -> None:
    flat = {seed: dict.fromkeys("abcdefgh", 0.5) for seed in range(4)}
    ours = {seed: dict.fromkeys("abcdefgh", 0.5 + 0.1 * seed) for seed in range(4)}
    found = paired_difference(ours, flat, "mean")
    assert found is not None
    assert found.value == pytest.approx(0.15)
    assert found.low < 0.08 < 0.22 < found.high
