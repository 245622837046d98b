"""Fixtures and settings of all tests."""

import signal
import warnings

import pytest

with warnings.catch_warnings():  # Flower's own imports use what its dependencies deprecate
    warnings.simplefilter("ignore")
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401
from flwr.supercore.task_identity import TaskIdentity


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


@pytest.fixture
def flower_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the identity that Flower's runtime gives a task, to make messages."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
