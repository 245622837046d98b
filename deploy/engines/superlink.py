"""Submit a run to a SuperLink, and follow it by the files of its run directory.

`fedkeel server`, or the container `server`, runs the ServerApp on the machine of the SuperLink. The
ServerApp writes the run directory there, so this engine works on that machine only.
"""

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import tomli_w

from common.config import RunConfig, nested
from common.errors import ConfigError, DeployError
from common.runs.live_state import read_live_state
from common.runs.outcome import Outcome, clear_outcome, read_outcome, write_outcome
from deploy.engines.base import Resources
from deploy.engines.fab import app_folder
from deploy.federation.enrollment import enrolled_clients
from deploy.federation.superlink_client import SuperLinkClient
from server_app.run_dir.run_dir import is_served

FRESH_SECONDS = 8.0  # a ServerApp that wrote so recently lives
ASK_SECONDS = 4.0  # between two questions to the SuperLink
FINISHED = "finished"  # how Flower's words for it begin
STOPPED = "finished:stopped"  # by somebody; a ServerApp that was cut off for a minute "failed"
RESTARTS = 3  # of a ServerApp that was killed
POLL_SECONDS = 0.2
ROOM = 1 << 16  # bytes that a run needs at least to go on: its records
START_SECONDS = 60.0  # of a ServerApp's process, in addition to server.start-timeout
PATIENCE_SECONDS = 30.0  # with a ServerApp that is told to stop


class SuperLinkJob:
    """A run on a SuperLink's nodes. A killed ServerApp is replaced and goes on from its checkpoint.

    Raises:
        ConfigError: fewer clients are enrolled than the run needs, or it is being served already.
        DeployError: the SuperLink cannot be reached or refuses the app.
    """

    def __init__(self, config: RunConfig, resources: Resources) -> None:
        assert resources.link is not None, "the engine superlink is given one"
        self.link: SuperLinkClient = resources.link
        self.folder = Path(config.out) / config.name
        if is_served(self.folder):
            raise ConfigError(
                f"the run in {self.folder} is being served already, by a ServerApp that goes on "
                f"without the command that started it; follow it with: fedkeel status "
                f"{config.name} --follow, or end it with: flwr stop"
            )
        names = [one.name for one in enrolled_clients(self.link)]
        if len(names) < config.quorum:
            raise ConfigError(
                f"a round needs {config.quorum} clients (clients={config.clients}, "
                f"server.quorum={config.server.quorum}), but {len(names)} are enrolled at "
                f"{self.link.address}: {', '.join(names) or 'none'}; enrol the others, or set "
                "clients or server.quorum"
            )
        self.config = config if config.names else replace(config, names=",".join(names))
        self.restarts = 0
        self._why = ""
        self._stopped: Outcome | None = None  # what a ServerApp said that was told to end
        self._asked = 0.0
        self._submit(self.config)

    def is_alive(self) -> bool:
        """Return whether the run goes on. Start it again if its ServerApp was killed or cut off."""
        if (outcome := read_outcome(self.folder)) is not None:
            if outcome.status != "stopped":
                return False
            self._stopped = outcome
            clear_outcome(self.folder)  # who follows the run must not take it for its end yet
        live = read_live_state(self.folder)
        begun = live is not None and live.updated > self._begun
        is_fresh = begun and live is not None and live.updated > time.time() - FRESH_SECONDS
        if is_fresh and self._stopped is None:
            return True
        if time.monotonic() - self._asked < ASK_SECONDS:
            return True
        self._asked = time.monotonic()
        try:
            return self._look_closer(begun)
        except DeployError as error:  # it is down; the run goes on when it is up again
            self._why = str(error)
            return True

    def _look_closer(self, begun: bool) -> bool:
        """Ask the SuperLink. Replace a ServerApp that is gone although the run was not stopped."""
        status, why = self._status()
        if read_outcome(self.folder) is not None:
            return False
        served = is_served(self.folder)
        if status == STOPPED:  # by somebody; its ServerApp has a moment to say so
            if self._stopped is not None and not served:
                write_outcome(self.folder, self._stopped)
            self._why = status
            return served
        gone = begun and not served
        if status.startswith(FINISHED) and not gone:
            self._why = f"{status}: {why}" if why else status
            return False
        if gone and (refused := _why_not_written(self.folder)):
            self._why = refused
            return False
        if gone and self.restarts == RESTARTS:
            self._why = f"its ServerApp was killed or cut off {RESTARTS + 1} times"
            return False
        if gone:
            self._go_on(status)
        limit = self.config.server.start_timeout + START_SECONDS
        if not begun and not served and time.time() - self._begun > limit:
            self._why = (
                f"no ServerApp started within {limit:g} s; look whether fedkeel server runs, and "
                "into its logs/app-process.log"
            )
            self.stop()
            return False
        return True

    def _go_on(self, status: str) -> None:
        """Submit the run again. Flower itself takes a minute to miss a ServerApp."""
        self.restarts += 1
        if not status.startswith(FINISHED):
            self.link.flwr("stop", str(self.run_id))
        self._submit(replace(self.config, resume=True))

    def stop(self) -> None:
        """Tell the SuperLink to stop the run, and wait until its ServerApp has noticed."""
        try:
            self.link.flwr("stop", str(self.run_id))
        except DeployError as error:
            self._why = str(error)
            return
        deadline = time.monotonic() + PATIENCE_SECONDS
        while is_served(self.folder) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def why_it_ended(self) -> str:
        """Return what the SuperLink says about it."""
        return (
            f"run {self.run_id} at {self.link.address} ended without an outcome "
            f"({self._why or 'no reason is known'}); see: flwr log {self.run_id}"
        )

    def _submit(self, config: RunConfig) -> None:
        home = Path(tempfile.mkdtemp(prefix="fedkeel-app-"))
        try:
            config_file = home / "run.toml"
            config_file.write_text(tomli_w.dumps(nested(config.to_flat())), encoding="utf-8")
            answer = self.link.flwr("run", str(app_folder(home)), "--run-config", str(config_file))
        finally:
            shutil.rmtree(home, ignore_errors=True)
        self.run_id = int(answer["run-id"])
        self._begun, self._stopped = time.time(), None

    def _status(self) -> tuple[str, str]:
        [run] = self.link.flwr("ls", "--run-id", str(self.run_id))["runs"]
        return str(run["status"]), str(run.get("status-details") or "")


def _why_not_written(folder: Path) -> str | None:
    """Say why a run that goes on could not write into its folder, None if it can."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))
            file.flush()
    except OSError as error:
        return f"{folder} cannot be written: {error}"
    return None
