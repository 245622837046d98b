"""The run in Flower's simulation engine, in a process of its own.

The engine is `flwr.simulation.run_simulation`, the one behind `flwr run`, called without the
SuperLink in between: this leaves no server behind, lets Ray restart a worker that was killed, and
raises in the caller when the ServerApp fails. Flower has announced to remove that call one day,
which is why the minor version is pinned.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rich.text import Text

from common.config import RunConfig, parse
from common.data.sources import data_root
from common.flower_internals import ErrorCode
from deploy.engines.base import Resources
from deploy.engines.client_call import answer
from deploy.system.flower_env import child_env
from deploy.system.processes import is_alive
from server_app.run_dir.run_dir import LOG

MARK = "FEDKEEL_JOB"  # in the environment of everything that a job starts
GRACE_SECONDS = 5.0
LONGEST_TEMP = 22  # bytes; Ray adds 80 and more for its sockets, which may have 103 on some systems


class SimulatedClientApp(ClientApp):
    """A ClientApp with what the bare engine does not give its clients.

    That is the run config, and a second chance for messages that were only handed to a worker
    which died on another one: Ray repeats whatever the dead worker had not answered.

    Args:
        load: returns the app that clients run; called in the worker's process alone.
        run_config: what they find in their context.
        begun: a folder that notes which messages are being worked on.
    """

    def __init__(
        self, load: Callable[[], ClientApp], run_config: Mapping[str, Any], begun: Path
    ) -> None:
        super().__init__()
        self.load, self.run_config, self.begun = load, dict(run_config), begun

    def __call__(self, message: Message, context: Context) -> Message:
        """Run the app, unless the last worker that did died of it."""
        # A new Context: the engine refuses to get its own back with another config.
        own = Context(
            context.run_id, context.node_id, context.node_config, context.state, self.run_config
        )
        note = self.begun / message.metadata.message_id
        try:
            note.touch(exist_ok=False)
        except FileExistsError:
            error = Error(ErrorCode.CLIENT_APP_CRASHED, "its worker died unexpectedly")
            return Message(error, reply_to=message)
        try:
            return answer(self.load(), message, own)
        finally:
            note.unlink()


class SimulationJob:
    """A run in a child process, which starts Ray and its workers."""

    def __init__(self, config: RunConfig, resources: Resources) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="fk-", dir=short_temp()))
        order = self.home / "order.json"
        shares = {"workers": resources.workers, "client_gpus": resources.client_gpus}
        content = {"config": config.to_flat(), "resources": shares}
        order.write_text(json.dumps(content), encoding="utf-8")
        self.log = Path(config.out) / config.name / LOG
        self.mark = f"{os.getpid()}-{self.home.name}"
        path = [entry for entry in sys.path if entry]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                # Not with -m: Ray's workers could then not import what this file defines.
                [sys.executable, "-P", "-c", f"from {__name__} import main; main()", str(order)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the parent, which ends the job in order
                cwd=self.home,  # Ray lets workers import from here first: not what the user has
                env={
                    **os.environ,
                    **child_env(),
                    MARK: self.mark,
                    "FEDKEEL_DATA": str(data_root(None).absolute()),
                    "FLWR_HOME": str(self.home / "flwr"),
                    "RAY_TMPDIR": str(self.home),
                    "PYTHONPATH": os.pathsep.join(path),
                },
            )

    def is_alive(self) -> bool:
        """Return whether the child runs. Clean up if it does not."""
        if self.process.poll() is None:
            return True
        clear_away(self.mark, str(self.home), GRACE_SECONDS)
        return False

    def stop(self) -> None:
        """Kill the child, Ray, and every worker; remove their temporary files.

        Nothing is asked to end by itself: a server that sees its workers go would record that as
        a round in which they failed. The files on disk are valid at any moment.
        """
        clear_away(self.mark, str(self.home))
        self.process.wait()

    def why_it_ended(self) -> str:
        """Return the exit code and the last error in the log, or what it says last."""
        code = self.process.returncode
        how = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        if code < 0:
            return f"the engine {how}; see {self.log}"
        lines = (
            self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            if self.log.exists()
            else []
        )
        newest_first = [line for line in reversed(lines) if line.strip()]
        errors = [line for line in newest_first if "Error" in line]
        last = next(iter(errors + newest_first), "nothing was logged")
        return f"the engine {how} ({Text.from_ansi(last).plain}); see {self.log}"


def short_temp() -> str:
    """Return the folder for temporary files, or /tmp where its path is too long for sockets."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_TEMP else "/tmp"


def family(mark: str, home: str) -> set[psutil.Process]:
    """Return the other live processes of a job, wherever they hang in the process tree.

    They have the job's mark in their environment, or its folder as working directory, or are
    children of such a process. Ray's workers overwrite their environment when they set their title,
    so all three are checked.
    """
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ours = process.environ().get(MARK) == mark
            if ours or f"{process.cwd()}/".startswith(f"{home}/"):
                found |= {process, *process.children(recursive=True)}
    return {process for process in found if process.pid != os.getpid() and is_alive(process)}


def clear_away(mark: str, home: str, grace: float = 0.0) -> None:
    """End a job's processes, after `grace` seconds, and remove its temporary files."""
    deadline = time.monotonic() + grace
    known: set[psutil.Process] = set()  # remembered, for an orphan no longer shows whose it is
    while alive := {process for process in known | family(mark, home) if is_alive(process)}:
        known |= alive
        if time.monotonic() >= deadline:
            for process in alive:
                with suppress(psutil.Error):
                    process.kill()
        time.sleep(0.1)
    shutil.rmtree(home, ignore_errors=True)


def _end_with_parent() -> None:
    """Clear away everything when the command that started this process is gone."""
    mark = os.environ[MARK]
    while os.getppid() == int(mark.partition("-")[0]):
        time.sleep(1)
    # In place of this process, which would go down with Ray before the work is done.
    code = f"from {__name__} import clear_away; clear_away({mark!r}, {str(Path.cwd())!r})"
    os.execv(sys.executable, [sys.executable, "-P", "-c", code])


def main() -> None:
    """Run the order of the file. This is the main function of the child process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    home = Path(sys.argv[1]).parent
    simulate(parse(order["config"]), Resources(**order["resources"]), our_app, home)


def our_app() -> ClientApp:
    """Return FedKeel's own ClientApp."""
    from client_app.app import app

    return app


def _import_ahead() -> None:
    """Import what takes long, torch above all: Ray's start is mostly waiting."""
    for name in ("flwr.simulation", "server_app.app"):
        import_module(name)


def simulate(
    config: RunConfig, resources: Resources, load: Callable[[], ClientApp], home: Path
) -> None:
    """Run a federation of these clients in Flower's simulation engine, in this process.

    Args:
        config: the run.
        resources: the resources that it may use.
        load: returns the app that clients run; called in the workers.
        home: folder for temporary files.
    """
    import ray

    # Started here, Ray gives Flower the workers that it starts with. Flower would ask for others.
    threading.Thread(target=_import_ahead, daemon=True).start()
    ray.init(
        "local",  # never another's cluster, whatever RAY_ADDRESS or a running one says
        num_cpus=resources.workers,
        include_dashboard=False,
        logging_level=logging.WARNING,
    )
    from flwr.simulation import run_simulation

    from deploy.engines.handover import HandOver

    orders = HandOver()
    orders.install()
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        from server_app.app import run

        orders.listen(grid)
        run(grid, config)

    begun = home / "begun"
    begun.mkdir()
    logging.getLogger("flwr").setLevel(logging.INFO)
    run_simulation(
        server_app,
        SimulatedClientApp(load, config.to_flat(), begun),
        num_supernodes=config.clients,
        backend_config={
            # A worker that dies is started again, and messages wait for it: without, Flower would
            # keep handing them to the dead one. (Ray gets all these keys as they are.)
            "client_resources": {
                "num_cpus": 1,
                "num_gpus": resources.client_gpus,
                "max_restarts": -1,
                "max_task_retries": 1,
            },
        },
    )
