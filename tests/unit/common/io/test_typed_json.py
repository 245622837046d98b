"""Parsed JSON becomes dataclasses, and an error names the place of the wrong value."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec
import pytest

from common.io.typed_json import FiniteFloat, Int64, JsonTypeError, from_json


@dataclass(frozen=True)
class Leaf:
    count: Int64
    share: FiniteFloat | None = None


@dataclass(frozen=True)
class Whole:
    name: str
    kind: Literal["a", "b"]
    yes: bool
    leaves: dict[str, list[Leaf]]
    free: dict[str, Any] = field(default_factory=dict)
    again: "Whole | None" = None


SMALL = {"name": "x", "kind": "a", "yes": True, "leaves": {"k": [{"count": 1}]}}


def test_from_json_inverts_asdict() -> None:
    inner = Whole("in", "b", False, {})
    free = {"any": [None, {}], "large": 10**400}
    whole = Whole("out", "a", True, {"k": [Leaf(3), Leaf(-1, 0.5)]}, free, inner)
    assert from_json(Whole, json.loads(json.dumps(asdict(whole)))) == whole


def test_missing_default_field_and_whole_number_for_float_are_accepted() -> None:
    assert from_json(Whole, SMALL) == Whole("x", "a", True, {"k": [Leaf(1)]})
    assert from_json(Leaf, {"count": 1, "share": 2}).share == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 5}, "name: expected str, got int"),
        ({"name": None}, "name: expected str, got null"),
        ({"kind": "c"}, "kind: invalid enum value 'c'"),
        ({"kind": ["a"]}, "kind: expected str, got array"),
        ({"yes": 1}, "yes: expected bool, got int"),
        ({"leaves": []}, "leaves: expected object, got array"),
        ({"leaves": {"k": {}}}, "leaves.k: expected array, got object"),
        ({"leaves": {"k": [{"count": 1}, {"count": True}]}},
         "leaves.k.1.count: expected int, got bool"),
        ({"leaves": {"k": [{"count": 1.0}]}}, "leaves.k.0.count: expected int, got float"),
        ({"leaves": {"k": [{"count": 2**63}]}}, "leaves.k.0.count: expected int <= 9223372036854"),
        ({"leaves": {"k": [{"count": 10**400}]}}, "leaves.k.0.count: expected int <= 92233720"),
        ({"leaves": {"k": [{"count": 1, "share": 10**400}]}}, "0.share: number out of range"),
        ({"leaves": {"k": [{"count": 1, "share": float("inf")}]}}, "0.share: expected float <= 1."),
        ({"leaves": {"k": [{"count": 1, "share": float("nan")}]}}, "0.share: expected float >= -1"),
        ({"leaves": {"k": [5]}}, "leaves.k.0: expected object, got int"),
        ({"leaves": {"k": [{}]}}, "leaves.k.0: object missing required field count"),
        ({"more": 1}, "unknown more"),
        ({"leaves": {"k": [{"count": 1, "b": 1, "a": 1}]}}, "leaves.k.0: unknown a, b"),
        ({"again": {**SMALL, "name": []}}, "again.name: expected str, got array"),
        ({"again": {**SMALL, "x": []}}, "again: unknown x"),
    ],
)  # fmt: skip
def test_error_names_the_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(JsonTypeError) as caught:
        from_json(Whole, {**SMALL, **change})
    assert message in str(caught.value)


def test_error_names_the_first_wrong_key_of_nested_dicts() -> None:
    good, bad, worse = [{"count": 1}], [{"count": True}], [{"count": 1.5}]
    value = {"x": {"k": good, "l": good}, "y": {"m": good, "n": bad}, "z": {"o": bad, "p": worse}}

    @dataclass(frozen=True)
    class Nested:
        deep: dict[str, dict[str, list[Leaf]]]

    with pytest.raises(JsonTypeError, match=r"^deep\.y\.n\.0\.count: expected int, got bool$"):
        from_json(Nested, {"deep": value})
    assert len(value["z"]) == 2  # the caller's value is not changed


def test_msgspec_alone_neither_names_keys_nor_refuses_unknown_ones() -> None:
    """The reason why `from_json` is more than `msgspec.convert`."""
    with pytest.raises(msgspec.ValidationError, match=r"\$\.leaves\[\.\.\.\]"):
        msgspec.convert({**SMALL, "leaves": {"k": 1}}, Whole)
    assert msgspec.convert({**SMALL, "more": 1}, Whole) == from_json(Whole, SMALL)
