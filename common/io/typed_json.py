"""Convert parsed JSON to dataclasses. An error names the place of the wrong value.

msgspec does the type checks. It ignores keys that a dataclass does not declare, and it writes
`[...]` for the key of a dict. `from_json` adds these two checks.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from sys import float_info
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from common.errors import FedError

T = TypeVar("T")
Place: TypeAlias = tuple[str, ...]

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
FiniteFloat: TypeAlias = Annotated[float, msgspec.Meta(ge=-float_info.max, le=float_info.max)]

_STEP = re.compile(r"\.(\w+)|\[(\.\.\.|\d+)\]")


class JsonTypeError(FedError):
    """A JSON value does not have the type of its field. The message starts with the place."""

    def __init__(self, problem: str, place: Place = ()) -> None:
        super().__init__(f"{'.'.join(place)}: {problem}" if place else problem)


def from_json(kind: type[T], value: Any) -> T:
    """Convert the result of `json.loads` to a dataclass.

    Fields of type `FiniteFloat` also accept whole numbers. Fields with a default may be missing.

    Args:
        kind: the dataclass. Its numbers are declared as `Int64` and `FiniteFloat`.
        value: the parsed JSON value.

    Raises:
        JsonTypeError: a value has the wrong type, or a key is missing or unknown.
    """
    try:
        result = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        problem = problem.replace("`", "")
        place = _place_of(kind, deepcopy(value), str(error), path)
        raise JsonTypeError(problem[0].lower() + problem[1:], place) from None
    if msgspec.to_builtins(result) != value:  # equal for what this version wrote, and fast
        for place, keys in _unknown_keys(value, result, ()):
            raise JsonTypeError(f"unknown {', '.join(keys)}", place)
    return result


def _place_of(kind: type[T], value: Any, message: str, path: str) -> Place:
    """Return the path with the keys of dicts. Empties dicts inside `value`."""
    place: list[str] = []
    part = value
    for field, index in _STEP.findall(path):
        step = field or index
        if step == "...":
            entries = dict(part)
            for step in entries:  # the entry that alone gives the same message is the wrong one
                part.clear()
                part[step] = entries[step]
                if _message(kind, value) == message:
                    break
        place.append(step)
        part = part[int(step) if isinstance(part, list) else step]
    return tuple(place)


def _message(kind: type[T], value: Any) -> str:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _unknown_keys(value: Any, result: Any, place: Place) -> Iterator[tuple[Place, list[str]]]:
    """Yield the keys of `value` that the dataclasses in `result` do not declare."""
    if is_dataclass(result):
        unknown = value.keys() - {field.name for field in fields(result)}
        if unknown:
            yield place, sorted(unknown)
        for key, part in value.items():
            yield from _unknown_keys(part, getattr(result, key), (*place, key))
    elif isinstance(result, dict):
        for key, part in value.items():
            yield from _unknown_keys(part, result[key], (*place, key))
    elif isinstance(result, list):
        for index, (part, read) in enumerate(zip(value, result, strict=True)):
            yield from _unknown_keys(part, read, (*place, str(index)))
