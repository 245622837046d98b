"""What the command of every benchmark does beside measuring.

It refuses at once what it could not use in the end, shows and keeps what was measured also when it
is stopped before the end, and leaves neither files nor processes behind.
"""

import ctypes
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from subprocess import SubprocessError
from types import FrameType
from typing import Any, NoReturn

import psutil
from rich.console import Console
from rich.table import Table

from common.errors import FedError
from common.io.files import atomic_write
from common.parallel import usable_cores
from deploy.system.processes import is_alive
from deploy.system.signals import STOPPING, stop_signals_ignored

TEMPORARY = "fk-bench-"  # short: what Ray puts below must be the name of a socket
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
LAST_SECONDS = 10.0
WIDE = 120  # characters of a line of a file


class Stopped(BaseException):
    """A signal asks for the end, the exit status of which is `code`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


# ---------------------------------------------------------------- options


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number and not smaller than this."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if int(text) >= least:
                return int(text)
        raise ArgumentTypeError(f'expected a whole number of at least {least}, got "{text}"')

    return read


def add_json(parser: ArgumentParser) -> None:
    """Add the option `--json`, whose file is known to be writable before anything is measured."""
    parser.add_argument(
        "--json", type=writable, metavar="FILE", help="keep the figures, and what they are of"
    )


def writable(text: str) -> Path:
    """Return the path of a file that can be written; it is left as it is.

    Raises:
        ArgumentTypeError: it cannot be written.
    """
    path = Path(text).absolute()
    is_new = not os.path.lexists(path)
    if path.exists() and not path.is_file():
        raise ArgumentTypeError(f"{path} is no regular file")
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        there = path.parent.is_dir()
        why = error.strerror if there else f"there is no folder {path.parent}"
        raise ArgumentTypeError(f"{path} cannot be written: {why}") from None
    return path


# ---------------------------------------------------------------- order


def carry_out(measure: Callable[[Path], None], show: Callable[[str | None], None]) -> None:
    """Measure, and show what was measured.

    Args:
        measure: is given a folder, in which all temporary files are made; it goes away, as every
            process does that was started meanwhile.
        show: prints and keeps what there is; it is given the reason why that is not all, which has
            been printed, or None.

    Raises:
        SystemExit: 128 + n when signal n stopped it, 1 when something did not do its work.
    """
    why, code = None, 0
    try:
        with _stoppable(), _scratch() as home:
            measure(home)
    except Stopped as stopped:
        why, code = str(stopped), stopped.code
    except (FedError, OSError, SubprocessError) as error:
        why, code = "something failed", 1
        print(error, file=sys.stderr)  # noqa: T201
    if why:
        print(f"PARTIAL, {why}: only what had been measured by then")  # noqa: T201
    show(why)
    if code:
        sys.exit(code)


def print_tables(tables: Sequence[Table], legend: str) -> None:
    """Print those tables that have rows, and what their words and units mean."""
    filled = [table for table in tables if table.row_count]
    for table in filled:
        Console(width=None if sys.stdout.isatty() else WIDE).print(table)
    if filled:
        print(legend)  # noqa: T201


def keep(
    path: Path | None, why: str | None, about: Mapping[str, Any] | None = None, **figures: Any
) -> None:
    """Write the file of `--json`, if one is wanted and there are any figures.

    Args:
        path: of the file.
        why: the reason why the figures are not all, or None; "partial" in the file.
        about: what they are of.
        figures: what was measured.
    """
    if path and any(figures.values()):
        said = {"partial": why, "machine": machine(), **(about or {}), **figures}
        try:
            with atomic_write(path) as file:
                file.write(f"{json.dumps(said, indent=1)}\n".encode())
        except OSError as error:
            sys.exit(f"{path} cannot be written: {error}")


def machine() -> Mapping[str, Any]:
    """Return what a table is worth nothing without."""
    versions = {name: version(name) for name in ("fedkeel", "flwr", "ray", "torch")}
    return {"cores": usable_cores(), "system": platform.platform(),
            "python": platform.python_version(), **versions}  # fmt: skip


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let the first signal that asks for the end raise Stopped, and no other one disturb that."""

    def stop(number: int, _: FrameType | None) -> NoReturn:
        for one in STOPPING:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    usual = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in usual.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:  # nohup asks to go on
            signal.signal(number, stop)
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield the folder of all temporary files; processes that were started end, then it goes."""
    with suppress(OSError, AttributeError):  # Linux: whose parent dies is ours, and can be ended
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    before = set(_children())
    home = tempfile.mkdtemp(prefix=TEMPORARY)
    usual, os.environ["TMPDIR"], tempfile.tempdir = os.environ.get("TMPDIR"), home, home
    try:
        yield Path(home)
    finally:
        with stop_signals_ignored():
            _end(before)
            shutil.rmtree(home, ignore_errors=True)
            tempfile.tempdir = None
            del os.environ["TMPDIR"]
            if usual is not None:
                os.environ["TMPDIR"] = usual


def _end(before: set[psutil.Process]) -> None:
    """Kill all descendants but these, and wait until none of them runs; nobody is reaped."""
    until = time.monotonic() + LAST_SECONDS
    while time.monotonic() < until:
        running = [one for one in _children() if one not in before and is_alive(one)]
        if not running:
            return
        for one in running:
            with suppress(psutil.Error):
                one.kill()
        time.sleep(0.02)


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)
