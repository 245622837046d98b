"""Values that came out of a JSON file, held against the type hints of what they should be.

A file that was edited, torn or made by another version is told by the place that is wrong, before
anything is computed with it.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from common.errors import FedError

T = TypeVar("T")
Read = Callable[[Any], Any]

LARGEST = 2**63  # of whole numbers: larger ones are no number of anything


class ShapeError(FedError):
    """A value is not what its type hint says; the message names the place inside the file."""

    def __init__(self, wanted: str, value: object, place: tuple[str, ...] = ()) -> None:
        self.wanted, self.value, self.place = wanted, value, place
        shown = f"{value!r:.60}" if isinstance(value, str | float | bool | None) else _kind(value)
        super().__init__(f"{'.'.join(place) or 'it'}: expected {wanted}, got {shown}")

    def below(self, part: object) -> "ShapeError":
        """Return the same error, told of a whole that has the value in this part."""
        return ShapeError(self.wanted, self.value, (str(part), *self.place))


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", int: "a whole number"}.get(type(value), "something")


def shaped(kind: type[T], value: Any) -> T:
    """Rebuild a dataclass from what `json.loads` made of it.

    Fields may be str, int, float, bool, None, Any, Literal, unions, lists, dicts with text as
    keys, and other such dataclasses. A float may be written as a whole number; all are finite.
    Fields with a default may be missing; others, and unknown ones, are errors.

    Raises:
        ShapeError: it does not have the shape.
    """
    told: T = _dataclass(kind, value)
    return told


@cache
def reader_of(hint: Any) -> Read:
    """Return what reads a value of this type; made once, since records have many values."""
    if is_dataclass(hint):
        return lambda value: _dataclass(hint, value)
    origin, inside = get_origin(hint), get_args(hint)
    if origin in COMPOUND:
        return COMPOUND[origin](*inside)
    return SIMPLE[hint]


def _dataclass(kind: Any, value: Any) -> Any:
    readers, needed = _fields(kind)
    if not isinstance(value, dict):
        raise ShapeError(f"an object with {', '.join(readers)}", value)
    unknown, missing = value.keys() - readers.keys(), needed - value.keys()
    if unknown or missing:
        names = sorted(map(str, unknown or missing))
        raise ShapeError(f"{'no' if unknown else 'also'} {', '.join(names)}", value)
    name, told = "", {}
    try:
        for name, part in value.items():
            told[name] = readers[name](part)
    except ShapeError as error:
        raise error.below(name) from None
    return kind(**told)


@cache
def _fields(kind: Any) -> tuple[Mapping[str, Read], frozenset[str]]:
    hints = get_type_hints(kind)
    without = [f for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    readers = {field.name: reader_of(hints[field.name]) for field in fields(kind)}
    return readers, frozenset(field.name for field in without)


def _list(inside: Any) -> Read:
    part = reader_of(inside)

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise ShapeError("a list", value)
        told: list[Any] = []
        try:
            for each in value:
                told.append(part(each))  # noqa: PERF401 - its length says where it broke off
        except ShapeError as error:
            raise error.below(len(told)) from None
        return told

    return read


def _dict(_: Any, inside: Any) -> Read:
    part = reader_of(inside)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ShapeError("an object", value)
        key, told = "", {}
        try:
            for key, each in value.items():
                told[key] = part(each)
        except ShapeError as error:
            raise error.below(key) from None
        return told

    return read


def _optional(*inside: Any) -> Read:
    """One of several types, of which None is one: the records have no other unions."""
    (other,) = (each for each in inside if each is not NoneType)
    part = reader_of(other)
    return lambda value: None if value is None else part(value)


def _literal(*allowed: str) -> Read:
    def read(value: Any) -> Any:
        if value not in allowed:
            raise ShapeError(f"one of {', '.join(allowed)}", value)
        return value

    return read


def _text(value: Any) -> Any:
    if type(value) is not str:
        raise ShapeError("text", value)
    return value


def _bool(value: Any) -> Any:
    if type(value) is not bool:
        raise ShapeError("true or false", value)
    return value


def _int(value: Any) -> Any:
    if type(value) is not int or not -LARGEST <= value < LARGEST:
        raise ShapeError("a whole number below 2^63", value)
    return value


def _float(value: Any) -> Any:
    if type(value) is float and isfinite(value):
        return value
    if type(value) is int and -LARGEST <= value < LARGEST:
        return value
    raise ShapeError("a finite number", value)


COMPOUND: Mapping[Any, Callable[..., Read]] = {
    list: _list, dict: _dict, UnionType: _optional, Literal: _literal,
}  # fmt: skip
SIMPLE: Mapping[Any, Read] = {
    str: _text, int: _int, float: _float, bool: _bool, Any: lambda value: value,
}  # fmt: skip
