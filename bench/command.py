"""Shared parts of the benchmark commands: options, tables, JSON files, clean stop.

Wrong options are refused before anything is measured. Ctrl-C keeps the results so far, marked as
partial, and leaves no file and no process behind.
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

TEMPORARY = "fk-bench-"  # short, because Ray creates sockets below it
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
LAST_SECONDS = 10.0
WIDE = 120  # characters of a line of a file


class Stopped(BaseException):
    """A signal stopped the benchmark. `code` is the exit status."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


# ---------------------------------------------------------------- options


def at_least(least: int) -> Callable[[str], int]:
    """Return an option type for whole numbers of at least `least`."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if int(text) >= least:
                return int(text)
        raise ArgumentTypeError(f'expected a whole number of at least {least}, got "{text}"')

    return read


def add_json(parser: ArgumentParser) -> None:
    """Add the option `--json`. Parsing checks that its file is writable."""
    parser.add_argument(
        "--json",
        type=writable,
        metavar="FILE",
        help="write the results to FILE",
    )


def writable(text: str) -> Path:
    """Return the path of a writable file, without changing it.

    Raises:
        ArgumentTypeError: the file cannot be written.
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
    """Measure and show the results.

    Args:
        measure: takes a folder for all temporary files. The folder and all processes started in
            the meantime are removed at the end.
        show: prints and writes the results. Its argument is the reason why they are partial, or
            None.

    Raises:
        SystemExit: 128 + n if signal n stopped the benchmark, 1 after an error.
    """
    why, code = None, 0
    try:
        with _stoppable(), _scratch() as home:
            measure(home)
    except Stopped as stopped:
        why, code = str(stopped), stopped.code
    except (FedError, OSError, SubprocessError) as error:
        why, code = "an error", 1
        print(error, file=sys.stderr)  # noqa: T201
    if why:
        print(f"PARTIAL, {why}: only the results so far")  # noqa: T201
    show(why)
    if code:
        sys.exit(code)


def print_tables(tables: Sequence[Table], legend: str) -> None:
    """Print the tables that have rows, and the legend."""
    filled = [table for table in tables if table.row_count]
    for table in filled:
        Console(width=None if sys.stdout.isatty() else WIDE).print(table)
    if filled:
        print(legend)  # noqa: T201


def keep(
    path: Path | None, why: str | None, about: Mapping[str, Any] | None = None, **figures: Any
) -> None:
    """Write the file of `--json`, if there is one and there are any results.

    Args:
        path: the file, or None.
        why: the reason why the results are partial, or None. Its key in the file is "partial".
        about: the setup of the benchmark.
        figures: the results.
    """
    if path and any(figures.values()):
        content = {"partial": why, "machine": machine(), **(about or {}), **figures}
        try:
            with atomic_write(path) as file:
                file.write(f"{json.dumps(content, indent=1)}\n".encode())
        except OSError as error:
            sys.exit(f"{path} cannot be written: {error}")


def machine() -> Mapping[str, Any]:
    """Return a description of this machine and its package versions."""
    versions = {name: version(name) for name in ("fedkeel", "flwr", "ray", "torch")}
    return {"cores": usable_cores(), "system": platform.platform(),
            "python": platform.python_version(), **versions}  # fmt: skip


@contextmanager
def _stoppable() -> Iterator[None]:
    """Raise Stopped at the first stop signal, and ignore further ones."""

    def stop(number: int, _: FrameType | None) -> NoReturn:
        for one in STOPPING:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    usual = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in usual.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, stop)
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a folder for all temporary files. At the end, kill started processes and delete it."""
    with suppress(OSError, AttributeError):  # Linux: adopt orphans, to kill them at the end
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
    """Kill all descendants except `before`, and wait until none of them runs."""
    until = time.monotonic() + LAST_SECONDS
    while time.monotonic() < until:
        running = [child for child in _children() if child not in before and is_alive(child)]
        if not running:
            return
        for child in running:
            with suppress(psutil.Error):
                child.kill()
        time.sleep(0.02)


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)
