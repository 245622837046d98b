"""Per-client vectors: immutable, sorted, with the round in which each was seen."""

import numpy as np
from numpy.testing import assert_array_equal

from common.client_vectors import ClientVectors


def vectors(**names: float) -> dict[str, np.ndarray]:
    return {name.removeprefix("c"): np.full(3, value) for name, value in names.items()}


def test_a_version_is_never_changed_by_a_later_one() -> None:
    empty = ClientVectors()
    one = empty.put(1, vectors(c1=1, c2=2))
    two = one.put(2, vectors(c2=5, c3=3))
    assert (len(empty), len(one), len(two)) == (0, 2, 3)
    assert_array_equal(one.get("2"), [2, 2, 2])
    assert_array_equal(two.get("2"), [5, 5, 5])
    assert {client: entry.round for client, entry in two.entries.items()} == {
        "1": 1,
        "2": 2,
        "3": 2,
    }


def test_clients_are_kept_in_the_order_of_their_ids() -> None:
    store = ClientVectors().put(1, vectors(c10=1, c2=1)).put(2, vectors(c1=1))
    assert list(store.entries) == ["1", "2", "10"]


def test_old_entries_age_out() -> None:
    store = ClientVectors().put(1, vectors(c1=1)).put(4, vectors(c2=1))
    assert list(store.since(1).entries) == ["1", "2"]
    assert list(store.since(2).entries) == ["2"]
    assert list(store.since(5).entries) == []


def test_nobody_has_a_vector_before_it_was_seen() -> None:
    assert ClientVectors().get("1") is None


def test_vectors_are_shared_and_counted() -> None:
    given = vectors(c1=1)
    store = ClientVectors().put(1, given)
    assert store.get("1") is given["1"]
    assert store.nbytes == 24
