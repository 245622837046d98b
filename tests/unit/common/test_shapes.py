"""What a JSON file says is held against type hints, and the wrong place is named."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest

from common.shapes import ShapeError, shaped


@dataclass(frozen=True)
class Leaf:
    count: int
    share: float | None = None


@dataclass(frozen=True)
class Whole:
    name: str
    kind: Literal["a", "b"]
    yes: bool
    leaves: dict[str, list[Leaf]]
    free: dict[str, Any] = field(default_factory=dict)
    again: "Whole | None" = None


SMALL = {"name": "x", "kind": "a", "yes": True, "leaves": {"k": [{"count": 1}]}}


def test_what_was_taken_apart_is_put_together_again() -> None:
    inner = Whole("in", "b", False, {})
    whole = Whole("out", "a", True, {"k": [Leaf(3), Leaf(-1, 0.5)]}, {"any": [None, {}]}, inner)
    assert shaped(Whole, json.loads(json.dumps(asdict(whole)))) == whole


def test_a_field_with_a_default_may_be_missing_and_a_number_may_be_whole() -> None:
    assert shaped(Whole, SMALL) == Whole("x", "a", True, {"k": [Leaf(1)]})
    assert shaped(Leaf, {"count": 1, "share": 2}).share == 2


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": 5}, "name: expected text, got a whole number"),
        ({"name": None}, "name: expected text, got None"),
        ({"kind": "c"}, 'kind: expected one of a, b, got \'c\''),
        ({"kind": ["a"]}, "kind: expected one of a, b, got a list"),
        ({"yes": 1}, "yes: expected true or false"),
        ({"leaves": []}, "leaves: expected an object, got a list"),
        ({"leaves": {"k": {}}}, "leaves.k: expected a list, got an object"),
        ({"leaves": {"k": [{"count": 1}, {"count": True}]}}, r"leaves.k.1.count: expected a whole"),
        ({"leaves": {"k": [{"count": 1.0}]}}, r"leaves.k.0.count: expected a whole number"),
        ({"leaves": {"k": [{"count": 10**400}]}}, r"leaves.k.0.count: expected a whole number"),
        ({"leaves": {"k": [{"count": 1, "share": 10**400}]}}, "0.share: expected a finite number"),
        ({"leaves": {"k": [{"count": 1, "share": float("inf")}]}}, "expected a finite number"),
        ({"leaves": {"k": [5]}}, "leaves.k.0: expected an object with count, share"),
        ({"leaves": {"k": [{}]}}, "leaves.k.0: expected also count"),
        ({"more": 1}, "it: expected no more"),
        ({"again": {**SMALL, "name": []}}, "again.name: expected text"),
    ],
)  # fmt: skip
def test_the_place_that_is_wrong_is_named(change: dict[str, Any], place: str) -> None:
    with pytest.raises(ShapeError) as told:
        shaped(Whole, {**SMALL, **change})
    assert place in str(told.value)
