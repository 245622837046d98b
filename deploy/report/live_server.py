"""`fedkeel watch`: serve the report of runs on the loopback address and keep it up to date."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from common.errors import ConfigError, FedError
from common.runs.class_counts import PARTITION
from common.runs.conformal_results import CONFORMAL
from common.runs.live_state import read_live_state
from common.runs.outcome import OUTCOME, read_outcome
from common.runs.records import CONFIG_FILE, RECORDS
from deploy.federation.status import headline
from deploy.report.run_data import RunData, discover, folders_with, name_below
from deploy.report.tensorboard_log import TensorBoardLog

LOOPBACK = "127.0.0.1"
LOOK_SECONDS = 1.0
SHARE = 0.25  # largest share of the time for drawing, because the runs need the cores
MARKS = (RECORDS, OUTCOME, CONFIG_FILE, PARTITION, CONFORMAL)

Render = Callable[[Sequence[RunData], Mapping[str, str]], str]


@dataclass(frozen=True)
class ServedPage:
    """A page, and the version of the files that it shows."""

    version: str
    html: str


class RunWatcher:
    """Keeps the page of the runs below some directories up to date.

    Args:
        places: run directories, or directories that will contain some.
        render: returns the page for runs, and for error messages by run directory.
        events: TensorBoard files to keep up to date as well.

    Attributes:
        shown: the newest page.
        error: the exception that ended the updates, if any.
    """

    def __init__(
        self, places: Sequence[Path], render: Render, events: TensorBoardLog | None = None
    ) -> None:
        self.places = list(places)
        self._render, self._events = render, events
        self.shown = ServedPage("", render([], {}))  # runs are read once the server is up
        self.error: Exception | None = None

    def look(self) -> bool:
        """Draw the page again if a file has changed. Return whether it did.

        If a directory disappears during the call, the page stays as it is.
        """
        try:
            states = self._states()
            version = _digest(states)
            if version == self.shown.version:
                return False
            runs, left_out = self._read()
            read = {*(str(run.path) for run in runs), *left_out}
            listed = {str(path.parent.resolve()) for path, *_ in states if path.name == RECORDS}
            if read != listed or self._states() != states:
                version += "~"  # a file changed meanwhile, so the next call draws again
        except OSError:  # a listed file is gone, so the next call tries again
            return False
        self.shown = ServedPage(version, self._render(runs, left_out))
        if self._events:
            names = [name_below(self.places, run.path) for run in runs if run.path]
            self._events.write(runs, names)
        return True

    def _read(self) -> tuple[list[RunData], dict[str, str]]:
        runs: dict[Path | None, RunData] = {}
        left_out: dict[str, str] = {}
        for place in self.places:
            with suppress(ConfigError):  # no run yet
                found, broken = discover([place])
                runs |= {run.path: run for run in found}
                left_out |= broken
        return list(runs.values()), left_out

    def now(self) -> list[str]:
        """Return the current status of each run that is not finished, one line per run."""
        lines: list[str] = []
        try:
            folders = self._folders()
        except OSError:
            return lines
        for folder in folders:
            try:
                live, outcome = read_live_state(folder), read_outcome(folder)
            except (FedError, OSError):
                continue
            if live and not outcome:
                name = name_below(self.places, folder)
                lines.append(f"{name}: {headline(live, None, time.time(), name)}")
        return lines

    def _folders(self) -> list[Path]:
        return [folder for place in self.places for folder in folders_with(place, MARKS)]

    def _states(self) -> list[tuple[Path, int, int]]:
        """Return the path, modification time and size of each file that the page shows."""
        return [
            (path, path.stat().st_mtime_ns, path.stat().st_size)
            for folder in self._folders()
            for mark in MARKS
            if (path := folder / mark).exists()
        ]


def _digest(states: Sequence[tuple[Path, int, int]]) -> str:
    text = json.dumps([(str(path), *numbers) for path, *numbers in states])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@contextmanager
def serving(watcher: RunWatcher, port: int) -> Iterator[str]:
    """Serve the page on the loopback address and keep it up to date. Yield its URL.

    Args:
        watcher: provides the page.
        port: 0 chooses a free one.

    Raises:
        ConfigError: the port is not available.
    """
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), _handler(watcher))
    except OSError as error:
        raise ConfigError(
            f"port {port} of {LOOPBACK} cannot be had: {error.strerror}; give another --port, or 0 "
            "for a free one"
        ) from error
    over = threading.Event()

    def follow() -> None:
        while not over.is_set() and not watcher.error:
            begin = time.monotonic()
            try:
                drawn = watcher.look()
            except Exception as error:  # the command raises it
                watcher.error = error
                return
            took = time.monotonic() - begin
            over.wait(max(LOOK_SECONDS, took / SHARE if drawn else 0))

    threads = [threading.Thread(target=t, daemon=True) for t in (server.serve_forever, follow)]
    for thread in threads:
        thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()


def _handler(watcher: RunWatcher) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert isinstance(self.server, ThreadingHTTPServer)
            port = self.server.server_port
            if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
                # protects against DNS rebinding: another site's name that resolves to this machine
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", "only for this machine\n")
            elif self.path == "/":
                self._answer(HTTPStatus.OK, "text/html", watcher.shown.html)
            elif self.path == "/state":
                state = {"version": watcher.shown.version, "now": watcher.now()}
                self._answer(HTTPStatus.OK, "application/json", json.dumps(state))
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is only /\n")

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Do not log requests."""

    return Handler
