"""Fairness numbers follow their definitions and leave out what is undefined."""

from dataclasses import astuple
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataError
from common.fairness import clients_without_examples, fairness, rounds_to_reach, worst_count

counts_of_clients = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.integers(0, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    max_size=25,
)


def percent(*accuracies: int) -> dict[str, tuple[int, int]]:
    """Clients with 100 test examples each and these accuracies in %."""
    return {str(client): (accuracy, 100) for client, accuracy in enumerate(accuracies)}


def test_the_worked_example() -> None:
    result = fairness(percent(90, 80, 70, 60, 50, 40, 85, 75, 65, 55))
    assert result is not None
    assert result.clients == 10
    assert result.mean == pytest.approx(0.67, abs=1e-12)
    assert result.spread == pytest.approx(0.15198684153571, abs=1e-12)
    assert result.worst10 == pytest.approx(0.40, abs=1e-12)
    assert result.jain == pytest.approx(0.951059322034, abs=1e-12)
    assert (result.minimum, result.maximum) == (0.4, 0.9)


def test_the_weighted_mean_counts_examples_and_the_mean_counts_clients() -> None:
    result = fairness({"small": (1, 1), "large": (0, 9)})
    assert result is not None
    assert result.mean == 0.5
    assert result.mean_weighted == 0.1


@given(counts_of_clients)
def test_jain_is_the_relative_spread_in_other_words(counts: dict[str, tuple[int, int]]) -> None:
    result = fairness(counts)
    if result is None:
        assert all(examples == 0 for _, examples in counts.values())
    elif result.mean == 0:
        assert result.jain == 0
    else:
        assert result.jain == pytest.approx(1 / (1 + (result.spread / result.mean) ** 2))


@given(counts_of_clients)
def test_every_number_is_an_accuracy_and_in_order(counts: dict[str, tuple[int, int]]) -> None:
    result = fairness(counts)
    if result is not None:
        assert all(isfinite(value) for value in astuple(result))
        assert 0 <= result.minimum <= result.worst10 + 1e-12
        assert result.worst10 <= result.mean + 1e-12
        assert result.mean <= result.maximum + 1e-12
        assert result.maximum <= 1
        assert result.clients + len(clients_without_examples(counts)) == len(counts)


@given(counts_of_clients)
def test_the_order_of_the_clients_changes_no_bit(counts: dict[str, tuple[int, int]]) -> None:
    assert fairness(dict(reversed(counts.items()))) == fairness(counts)


@pytest.mark.parametrize(
    ("clients", "worst"),
    [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (30, 3), (70, 7), (100, 10), (101, 11)],
)
def test_the_worst_tenth_is_rounded_up_exactly(clients: int, worst: int) -> None:
    assert worst_count(clients) == worst


def test_worst10_is_the_mean_of_the_smallest_not_a_quantile() -> None:
    result = fairness(percent(10, 30, *[90] * 18))
    assert result is not None
    assert result.worst10 == pytest.approx(0.2)


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/246
def test_clients_without_examples_are_listed_not_counted_as_zero() -> None:
    counts = {"none": (0, 0), "normal": (8, 10), "empty": (0, 0), "poor": (0, 5)}
    result = fairness(counts)
    assert result == fairness({"normal": (8, 10), "poor": (0, 5)})
    assert clients_without_examples(counts) == ("none", "empty")


# A public report of this bug: https://github.com/flwrlabs/flower/issues/7708
@pytest.mark.parametrize("counts", [{}, {"a": (0, 0)}, {"a": (0, 0), "b": (0, 0)}])
def test_nobody_contributes_means_absent(counts: dict[str, tuple[int, int]]) -> None:
    assert fairness(counts) is None


def test_all_wrong_has_jain_zero_and_no_nan() -> None:
    result = fairness(percent(0, 0, 0))
    assert result is not None
    assert (result.mean, result.worst10, result.spread, result.jain) == (0, 0, 0, 0)


@pytest.mark.parametrize("count", [(3, 2), (-1, 2), (1, 0), (0, -1)])
def test_impossible_counts_are_refused_with_the_clients_name(count: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="client liar reports"):
        fairness({"honest": (1, 2), "liar": count})


def test_rounds_to_reach_is_the_first_evaluated_round_at_or_above_the_target() -> None:
    curve = [(10, 0.2), (20, 0.5), (30, 0.4), (40, 0.6)]
    assert rounds_to_reach(curve, 0.5) == 20
    assert rounds_to_reach(curve, 0.51) == 40
    assert rounds_to_reach(curve, 0.7) is None
    assert rounds_to_reach([], 0.0) is None
