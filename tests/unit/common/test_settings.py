"""A setting knows its range, and an instance that exists is within it."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from common.errors import ConfigError
from common.settings import Range, Settings, key_of, same_setting, setting


@dataclass(frozen=True)
class Knobs(Settings):
    """Something of every type."""

    rate: float = setting(0.1, "a rate", low=0, open_low=True)
    share: float = setting(0.5, "a share", low=0, high=1, open_high=True)
    batch_size: int = setting(32, "a count", low=1)
    flip: bool = setting(False, "a switch")
    mode: str = setting("auto", "a choice", choices=("auto", "cpu"))
    name: str = setting("", "a text")


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "said"),
    [
        (Range(), [-1e300, 0, 5], [np.inf, np.nan, -np.inf], "a finite number"),
        (Range(low=0), [0, 1e9], [-1e-9, np.nan, np.inf], "at least 0"),
        (Range(low=0, open_low=True), [1e-300], [0, -1], "more than 0"),
        (Range(low=0, high=1), [0, 0.5, 1], [1.0001, -0.1], "in [0, 1]"),
        (Range(low=0, high=1, open_high=True), [0, 0.999], [1], "in [0, 1)"),
        (Range(low=0, high=1, open_low=True), [0.001, 1], [0], "in (0, 1]"),
        (Range(choices=("a", "b")), ["a", "b"], ["c", ""], 'one of "a", "b"'),
    ],
)
def test_a_range_knows_its_ends_and_its_words(
    limits: Range, inside: list[Any], outside: list[Any], said: str
) -> None:
    assert all(value in limits for value in inside)
    assert not any(value in limits for value in outside)
    assert str(limits) == said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rate", 0.0, "rate must be more than 0, not 0.0"),
        ("rate", float("nan"), "rate must be more than 0, not nan"),
        ("rate", "0.1", "rate must be a number, not a text ('0.1')"),
        ("rate", True, "rate must be a number, not true or false (True)"),
        ("rate", None, "rate must be a number, not None"),
        ("share", 1.0, "share must be in [0, 1), not 1.0"),
        ("batch_size", 2.5, "batch-size must be a whole number, not a number (2.5)"),
        ("batch_size", 0, "batch-size must be at least 1, not 0"),
        ("flip", 1, "flip must be true or false, not a whole number (1)"),
        ("mode", "gpu", 'mode must be one of "auto", "cpu", not \'gpu\''),
        ("name", 3, "name must be a text, not a whole number (3)"),
    ],
)
def test_what_is_out_of_range_or_of_another_type_is_refused(
    name: str, value: Any, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Knobs(**{name: value})
    assert str(caught.value) == f"Knobs: {said}"
    problems: list[str] = []
    assert Knobs.read({key_of(name): value}, "knobs.", problems) == Knobs()
    assert problems == [f"knobs.{said}"]


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"rate .*; batch-size .*; mode"):
        Knobs(rate=-1.0, batch_size=0, mode="gpu")


@pytest.mark.parametrize("rate", [1, np.float64(0.5), np.float32(0.5), 0.5])
def test_numbers_of_every_make_are_numbers(rate: Any) -> None:
    assert Knobs(rate=rate, batch_size=np.int64(3)).rate == rate


def test_whole_numbers_are_read_as_floats_where_a_float_is_meant() -> None:
    problems: list[str] = []
    knobs = Knobs.read({"rate": 1}, "", problems)
    assert problems == []
    assert type(knobs.rate) is float


def test_a_table_is_read_back() -> None:
    knobs = Knobs(rate=0.3, batch_size=7, flip=True, mode="cpu", name="x")
    table = knobs.to_table()
    assert list(table) == ["rate", "share", "batch-size", "flip", "mode", "name"]
    assert Knobs.read(table, "", []) == knobs


def test_every_setting_says_what_it_is() -> None:
    assert [item.metadata["help"] for item in fields(Knobs)][:3] == ["a rate", "a share", "a count"]


def test_a_setting_taken_over_from_another_group_has_its_default_range_and_help() -> None:
    @dataclass(frozen=True)
    class Others(Settings):
        learning_rate: float = same_setting(Knobs, "rate")

    assert Others().learning_rate == Knobs().rate
    assert fields(Others)[0].metadata == fields(Knobs)[0].metadata
    with pytest.raises(ConfigError, match="learning-rate must be more than 0, not 0"):
        Others(learning_rate=0)
