"""Handle the signals that stop a command, and lock a run directory."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from common.errors import ConfigError
from common.io.files import file_lock

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def on_stop_signal(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` on each SIGINT, SIGTERM and SIGHUP.

    A signal that the parent process ignores stays ignored (SIGHUP under nohup, SIGINT of a
    shell's background job), except SIGTERM.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        act()

    with _handlers({number: handle for number in STOPPING if not _stays_ignored(number)}):
        yield


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM and SIGHUP set."""
    event = threading.Event()
    with on_stop_signal(event.set):
        yield event


def interrupt() -> NoReturn:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


@contextmanager
def stop_signals_ignored() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP during the block, for cleaning up."""
    with _handlers(dict.fromkeys(STOPPING, signal.SIG_IGN)):
        yield


def run_dir_lock(run_dir: Path) -> AbstractContextManager[object]:
    """Hold the lock of a run directory.

    Raises:
        ConfigError: Another process holds it.
    """
    taken = ConfigError(
        f"another process is running the run in {run_dir}; wait for it, or give this one another "
        "--name"
    )
    return file_lock(run_dir / "lock", taken)


def _stays_ignored(number: signal.Signals) -> bool:
    return number != signal.SIGTERM and signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def _handlers(wanted: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Install these handlers for the block. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
