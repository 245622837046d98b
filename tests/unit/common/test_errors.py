"""Every error of ours is a FedError, and a hint is only given when it helps."""

import inspect

import pytest

import common.errors as errors
from common.errors import FedError, did_you_mean


def test_every_error_can_be_caught_as_one() -> None:
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    kinds = [kind for kind in classes if kind.__module__ == errors.__name__]
    assert len(kinds) > 5
    assert all(issubclass(kind, FedError) for kind in kinds)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("fedpdc", ' (did you mean "fedpcd"?)'), ("tua", ' (did you mean "tau"?)'), ("xyzzy", "")],
)
def test_the_nearest_known_word_is_offered(word: str, hint: str) -> None:
    assert did_you_mean(word, ["fedavg", "fedpcd", "tau"]) == hint
