"""A draw depends on its address, and on nothing that was drawn before it."""

import subprocess
import sys
from itertools import product

import numpy as np
from numpy.testing import assert_array_equal

from common.rng import address, stream


def test_the_same_address_gives_the_same_draws() -> None:
    one = stream(1, "cohort", 3).random(5)
    stream(1, "cohort", 4).random(100)
    np.random.default_rng(0).random(3)
    assert_array_equal(stream(1, "cohort", 3).random(5), one)


def test_different_addresses_are_different_streams() -> None:
    purposes, paths = ("cohort", "batches"), ((), (1,), (2,), (1, 2), (12,), (1, "a"))
    keys = [(seed, p, *path) for seed, p, path in product((0, 1, 2), purposes, paths)]
    assert len({address(*key) for key in keys}) == len(keys)
    assert len({stream(*key).integers(2**60) for key in keys}) == len(keys)


def test_neighbouring_streams_are_not_correlated() -> None:
    rows = np.stack([stream(1, "batches", number).normal(size=2000) for number in range(20)])
    correlations = np.corrcoef(rows)[np.triu_indices(20, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(2000)


def test_a_number_and_its_text_are_one_address() -> None:
    """A client's id is a text on the wire and a number in a loop."""
    assert address(1, "batches", 3, "7") == address(1, "batches", "3", 7)


def test_the_draws_are_the_same_on_every_machine_and_in_every_version() -> None:
    """The address is `printf '1\\x1fcohort\\x1f3' | b2sum -l 128`, least byte first."""
    assert (
        address(1, "cohort", 3).to_bytes(16, "little").hex() == "55fd5169cab82d94e142ab5ecf9d8a5d"
    )
    assert stream(1, "cohort", 3).integers(0, 1000, 5).tolist() == [346, 435, 660, 721, 225]


def test_another_process_draws_the_same() -> None:
    code = "from common.rng import stream; print(stream(5, 'x', 'y').integers(2**60))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert int(output.stdout) == stream(5, "x", "y").integers(2**60)
