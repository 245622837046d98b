"""Freed memory stays with the process where the C library can be told so."""

import ctypes
import sys
from typing import Any

import pytest

from common.malloc import KEPT, TRIM_THRESHOLD, keep_freed_memory


class Glibc:
    """A C library that notes what it is told."""

    gnu_get_libc_version = None

    def __init__(self, takes: int = 1) -> None:
        self.takes, self.told = takes, {}

    def mallopt(self, option: int, value: int) -> int:
        self.told[option] = value
        return self.takes


@pytest.fixture(autouse=True)
def forgotten() -> None:
    keep_freed_memory.cache_clear()


@pytest.mark.parametrize("takes", [0, 1])
def test_glibc_is_told_once_and_says_whether_it_will(
    takes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Glibc(takes)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert keep_freed_memory() == bool(takes)
    assert library.told[TRIM_THRESHOLD] == KEPT
    library.told.clear()
    keep_freed_memory()
    assert not library.told


def refuses(_: Any) -> None:
    raise OSError("no such library")


@pytest.mark.parametrize("library", [lambda _: object(), refuses])
def test_elsewhere_nothing_happens(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", library)
    assert keep_freed_memory() is False


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_this_machines_library_takes_all_settings() -> None:
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        pytest.skip("another C library than glibc")
    assert keep_freed_memory()
