"""Run a function in a new process, to measure its memory alone."""

import ctypes
import gc
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.trial import BenchError

PATIENCE_SECONDS = 600.0


class PatienceError(BenchError):
    """The function did not return before the timeout."""


def alone(work: Callable[..., Any], *given: Any, patience: float = PATIENCE_SECONDS) -> Any:
    """Return the result of work(*given) in a new process.

    Raises:
        PatienceError: it did not return within `patience` seconds.
        BenchError: the process died. Its output is on stderr.
    """
    what = f"{work.__name__}{given}"
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, work, *given))
    ours = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process.start()  # Ctrl-C reaches this process only, which then ends the child
    there.close()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ours)
        if not here.poll(patience):
            raise PatienceError(f"{what} was not done in {patience:g} s")
        return here.recv()
    except EOFError:
        process.join()
        raise BenchError(f"{what} ended with code {process.exitcode} and no result") from None
    finally:
        process.kill()
        process.join()


def _send(there: Connection, work: Callable[..., Any], *given: Any) -> None:
    there.send(work(*given))


def rss() -> float:
    """Return the resident memory of this process, in megabytes (1e6 bytes)."""
    return _status("VmRSS")


def peak() -> float:
    """Return the peak resident memory in megabytes, since the start or the last `settled`.

    ru_maxrss is not used, because a new process inherits its parent's value.
    """
    return _status("VmHWM")


def settled() -> float:
    """Return freed memory to the system, reset `peak`, and return the resident megabytes."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return rss()


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines)
    return int(said[name].split()[0]) * 1024 / 1e6
