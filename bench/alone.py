"""Work in a process of its own, so that its memory is its own, and can be told."""

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
    """Work was not done when patience ended."""


def alone(work: Callable[..., Any], *given: Any, patience: float = PATIENCE_SECONDS) -> Any:
    """Return what work(*given) returns in a new process.

    Raises:
        PatienceError: it was not done after `patience` seconds.
        BenchError: the process died of it; what it said is on stderr.
    """
    what = f"{work.__name__}{given}"
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, work, *given))
    ours = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process.start()  # and Ctrl-C is for us alone, who will end it
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
    """Return the megabytes (1e6 bytes) of memory that this process holds now."""
    return _status("VmRSS")


def peak() -> float:
    """Return the most that it ever held, or since `settled`.

    Not ru_maxrss: a new process is told its parent's there.
    """
    return _status("VmHWM")


def settled() -> float:
    """Give back what is free, let `peak` begin anew, and return the megabytes that are left."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library than glibc keeps what it likes
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return rss()


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines)
    return int(said[name].split()[0]) * 1024 / 1e6
