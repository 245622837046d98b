"""Settings: frozen dataclasses whose fields carry their range and their meaning.

Each setting is declared once, with its default, its range and a help text. The run config, the
ready-made strategies and the documentation read it from here.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, Self, get_type_hints

from common.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Range:
    """The allowed values of a setting: an interval (closed unless `open`), or `choices`."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    choices: tuple[str | int, ...] = ()

    def __contains__(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, bool | str):
            return True
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return math.isfinite(value) and above and below

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(json.dumps(choice) for choice in self.choices)
        if math.isinf(self.low) and math.isinf(self.high):
            return "a finite number"
        if math.isinf(self.high):
            return f"{'more than' if self.open_low else 'at least'} {self.low:g}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"in {left}{self.low:g}, {self.high:g}{right}"


def setting(default: Any, help: str, **limits: Any) -> Any:  # noqa: A002 - as argparse calls it
    """Declare a dataclass field with its default, help text and `Range`."""
    return field(default=default, metadata={"help": help, "range": Range(**limits)})


def same_setting(group: type["Settings"], name: str) -> Any:
    """Declare a dataclass field with the default, help text and `Range` of a field of `group`."""
    (source,) = (item for item in fields(group) if item.name == name)
    return field(default=source.default, metadata=source.metadata)


def key_of(name: str) -> str:
    """Return the run-config spelling of a field: lr_decay -> lr-decay."""
    return name.replace("_", "-")


@dataclass(frozen=True)
class Settings:
    """Base of every group of settings. Every instance is within its ranges."""

    def __post_init__(self) -> None:
        types = _types(type(self))
        problems = [
            problem
            for item in fields(self)
            if "range" in item.metadata
            for problem in _problems_of(
                key_of(item.name), item, types[item.name], getattr(self, item.name)
            )
        ]
        if problems:
            raise ConfigError(f"{type(self).__name__}: " + "; ".join(problems))

    @classmethod
    def read(cls, table: Mapping[str, Any], prefix: str, problems: list[str]) -> Self:
        """Return an instance from kebab-case keys, and append every problem to `problems`.

        Integers are accepted for floats, because Flower sends `lr=1` as an integer.

        Args:
            table: values by kebab-case key.
            prefix: of the keys in problems, such as "train.".
            problems: list that gets every problem.
        """
        types = _types(cls)
        known = {key_of(item.name): item for item in fields(cls)}
        values: dict[str, Any] = {}
        for key, raw in table.items():
            item = known[key]
            kind = types[item.name]
            value = float(raw) if kind is float and type(raw) is int and _fits(raw) else raw
            if faults := _problems_of(prefix + key, item, kind, value):
                problems.extend(faults)
            else:
                values[item.name] = value
        return cls(**values)

    def to_table(self) -> dict[str, Any]:
        """Return the settings by their kebab-case keys."""
        return {key_of(item.name): getattr(self, item.name) for item in fields(self)}


_types: Callable[[Any], Mapping[str, Any]] = cache(get_type_hints)  # cached, because it is slow


_KINDS: Mapping[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    bool: (bool, "true or false"),
}


def _problems_of(name: str, item: Field[Any], kind: Any, value: Any) -> Sequence[str]:
    wanted, kind_name = _KINDS[kind]
    if not isinstance(value, wanted) or isinstance(value, bool) != (kind is bool):
        given = _KINDS[type(value)][1] + f" ({value!r})" if type(value) in _KINDS else repr(value)
        return [f"{name} must be {kind_name}, not {given}"]
    if isinstance(value, str) and not _is_writable(value):
        return [f"{name} must be a text that can be written to a file, not {value!r}"]
    if isinstance(value, int) and not _fits(value):
        return [f"{name} must be a number of at most 64 bits, not one of {len(str(value))} digits"]
    limits = item.metadata["range"]
    if value in limits:
        return []
    words = [choice for choice in limits.choices if isinstance(choice, str)]
    near = ""
    if len(words) > 5 and isinstance(value, str):  # a short list needs no suggestion
        near = did_you_mean(value, words)
    return [f"{name} must be {limits}, not {value!r}{near}"]


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of the command line that are not characters
        return False
    return "\0" not in text
