"""Order among processes: one at a time in a folder, and endings that nothing interrupts."""

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from common.errors import ConfigError
from common.io.files import file_lock

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals_ignored() -> Iterator[None]:
    """Let no second Ctrl-C or SIGTERM interrupt what must be brought to an end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_dir_lock(folder: Path) -> AbstractContextManager[object]:
    """Keep other commands out of a run's folder; the lock dies with its holder.

    Raises:
        ConfigError: somebody else holds it.
    """
    taken = ConfigError(
        f"another process is running the run in {folder}; wait for it, or give this one another "
        "--name"
    )
    return file_lock(folder / "lock", taken)
