"""The cohort of a round depends on seed, round and clients, and on nothing else."""

import numpy as np
import pytest

from common.rng import stream
from server_app.round.sampling import sample_clients

CLIENTS = [str(k) for k in range(100)]


def test_the_order_in_which_clients_connect_does_not_matter() -> None:
    mixed = [CLIENTS[k] for k in stream(0, "mix").permutation(100)]
    for number in range(1, 20):
        assert sample_clients(mixed, 10, seed=1, round=number) == sample_clients(
            CLIENTS, 10, seed=1, round=number
        )


def test_a_cohort_has_distinct_clients_in_the_order_of_their_ids() -> None:
    for number in range(1, 50):
        cohort = sample_clients(CLIENTS, 10, seed=1, round=number)
        assert len(set(cohort)) == 10
        assert cohort == sorted(cohort, key=int)


def test_rounds_and_seeds_draw_differently() -> None:
    cohorts = {
        tuple(sample_clients(CLIENTS, 10, seed=seed, round=number))
        for seed in range(10)
        for number in range(10)
    }
    assert len(cohorts) == 100


def test_every_client_is_drawn_about_equally_often() -> None:
    counts = dict.fromkeys(CLIENTS, 0)
    for number in range(2000):
        for client in sample_clients(CLIENTS, 10, seed=4, round=number):
            counts[client] += 1
    # binomial with p = 0.1: mean 200, deviation sqrt(180)
    assert np.abs(np.array(list(counts.values())) - 200).max() < 4.5 * 180**0.5


@pytest.mark.parametrize("size", [3, 5])
def test_a_sample_is_at_most_all_clients(size: int) -> None:
    assert sample_clients(["b", "a", "c"], size, seed=0, round=1) == ["a", "b", "c"]
    assert sample_clients([], size, seed=0, round=1) == []


def test_the_draw_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert sample_clients(CLIENTS, 5, seed=1, round=1) == ["42", "44", "47", "65", "73"]
