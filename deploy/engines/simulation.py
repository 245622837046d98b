"""The run in Flower's simulation engine, in a process of its own.

The engine is `flwr.simulation.run_simulation`, the one behind `flwr run`, called without the
SuperLink in between: that starts in half the time, leaves no server behind, lets Ray restart a
worker that was killed, and raises in the caller when the ServerApp fails. Flower has announced to
remove that call one day, which is why the minor version is pinned.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from common.config import RunConfig, parse
from deploy.engines.base import LOG, Resources
from deploy.environment import QUIET

MARK = "FEDKEEL_JOB"  # in the environment of everything that a job starts
GRACE_SECONDS = 5.0


class ConfiguredClientApp(ClientApp):
    """A ClientApp that gives its clients the run config, which the bare engine does not."""

    def __init__(self, app: ClientApp, run_config: Mapping[str, Any]) -> None:
        super().__init__()
        self.app, self.run_config = app, dict(run_config)

    def __call__(self, message: Message, context: Context) -> Message:
        """Run the app with the run config in the context."""
        # A new Context: the engine refuses to get its own back with another config.
        own = Context(
            context.run_id, context.node_id, context.node_config, context.state, self.run_config
        )
        return self.app(message, own)


class SimulationJob:
    """A run in a child process, which starts Ray and its workers."""

    def __init__(self, config: RunConfig, resources: Resources) -> None:
        # Ray makes sockets below this folder, whose paths must stay short.
        self.home = Path(tempfile.mkdtemp(prefix="fk-"))
        order = self.home / "order.json"
        order.write_text(json.dumps({"config": config.to_flat(), "resources": vars(resources)}))
        self.log = Path(config.out) / config.name / LOG
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.mark = f"{os.getpid()}-{self.home.name}"
        path = [entry for entry in sys.path if entry]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "deploy.engines.simulation", str(order)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the parent, which ends the job in order
                env={
                    **os.environ,
                    **QUIET,
                    MARK: self.mark,
                    "FLWR_HOME": str(self.home / "flwr"),
                    "RAY_TMPDIR": str(self.home),
                    "PYTHONPATH": os.pathsep.join(path),
                },
            )

    def is_alive(self) -> bool:
        """Whether the child runs; cleans up when it does not."""
        if self.process.poll() is None:
            return True
        self.stop()
        return False

    def stop(self) -> None:
        """End the child, Ray, and every worker; remove their temporary files."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        left = marked(self.mark)
        _, alive = psutil.wait_procs(left, timeout=GRACE_SECONDS)
        while alive:
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive, timeout=GRACE_SECONDS)
            alive = marked(self.mark)  # whatever was being born meanwhile
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def why_it_ended(self) -> str:
        """Return the exit code and the last line of the log that says something."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "nothing was logged")
        return f"the engine ended with code {self.process.returncode} ({last}); see {self.log}"


def marked(mark: str) -> list[psutil.Process]:
    """Return the live processes that a job started, wherever they hang in the process tree."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _end_with_parent(parent: int) -> None:
    """End this process and its children when the command that started it is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    for process in marked(os.environ[MARK]):
        if process.pid != os.getpid():
            with suppress(psutil.Error):
                process.kill()
    shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)
    os._exit(1)


def main(order: Path) -> None:
    """Run what the order file says; the body of the child process."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    from flwr.simulation import run_simulation

    from client_app.app import app as client_app
    from server_app.app import run

    said = json.loads(order.read_text())
    config, resources = parse(said["config"]), Resources(**said["resources"])
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        run(grid, config)

    logging.getLogger("flwr").setLevel(logging.INFO)
    run_simulation(
        server_app,
        ConfiguredClientApp(client_app, config.to_flat()),
        num_supernodes=config.clients,
        backend_config={
            # A worker that dies is started again: without, Flower would keep handing messages
            # to the dead one. (Keys beside num_cpus and num_gpus go to Ray as they are.)
            "client_resources": {
                "num_cpus": 1,
                "num_gpus": resources.client_gpus,
                "max_restarts": -1,
            },
            "init_args": {"num_cpus": resources.workers},
        },
    )


if __name__ == "__main__":
    # Under its own name, so that Ray's workers can import what is defined here.
    from deploy.engines.simulation import main as work

    work(Path(sys.argv[1]))
