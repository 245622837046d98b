"""Fixtures and settings of all tests."""

import os
import signal
import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():  # Flower's own imports use what its dependencies deprecate
    warnings.simplefilter("ignore")
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401
from flwr.supercore.task_identity import TaskIdentity

from tests.leftovers import SESSION, end_processes, state_of_machine

LONG_TIERS = ("slow", "containers")


def _handle_ignored_signals() -> None:
    """Replace ignored SIGINT and SIGHUP by handlers, so that child processes get the defaults.

    A shell's background jobs ignore SIGINT, `nohup` ignores SIGHUP, and children would inherit
    both. A handler is not inherited. The one of SIGHUP does nothing, so that `nohup pytest` still
    outlives its terminal.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


_handle_ignored_signals()


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail where tests left processes, and, after a long tier, anything else on the machine."""
    os.environ[SESSION] = str(os.getpid())
    marks = {mark.name for item in request.session.items for mark in item.iter_markers()}
    is_long = not marks.isdisjoint(LONG_TIERS)
    before = state_of_machine() if is_long else set()
    yield
    left = [f"process {command}" for command in end_processes()]
    left += sorted(state_of_machine() - before) if is_long else []
    assert not left, "tests left behind:\n" + "\n".join(left)


@pytest.fixture
def flower_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the identity that Flower's runtime gives a task, to make messages."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
