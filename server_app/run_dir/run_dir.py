"""RunDir: the directory of a run, whose files are written during the run."""

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.config import RunConfig
from common.errors import CheckpointError, ConfigError, FedError
from common.io.files import atomic_write, file_lock
from common.layout import Layout
from common.run_identity import fingerprint
from common.runs.json_file import RecordError
from common.runs.live_state import LiveState, LiveStateFile
from common.runs.outcome import Outcome, clear_outcome, read_outcome, write_outcome
from common.runs.records import CONFIG_FILE, RECORDS, Recorder, RoundRecord, read_records
from server_app.run_dir.checkpoint import load_newest, newest_head, rewind
from server_app.run_dir.checkpoint_keeper import CheckpointKeeper
from server_app.run_dir.memory_mapped import MAPPED, MemoryMappedVectors
from server_app.run_dir.saved_config import SavedConfig
from server_app.state.server_state import ServerState

CHECKPOINTS = "checkpoints"
SERVING = "serving.lock"
LOG = "engine.log"  # log of the ServerApp and its engine
WEIGHTS = "weights.npz"


@dataclass(frozen=True)
class RunDir:
    """The directory `out/name` of one run.

    Attributes:
        path: the directory.
        config: the run config.
        live: writes `live.json`.
        checkpoints: writes the checkpoints.
    """

    path: Path
    config: RunConfig
    live: LiveStateFile = field(init=False, repr=False, compare=False)
    checkpoints: CheckpointKeeper = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "live", LiveStateFile(self.path))
        object.__setattr__(
            self, "checkpoints", CheckpointKeeper(self.path / CHECKPOINTS, self.config)
        )

    @classmethod
    def claim(cls, config: RunConfig) -> "RunDir":
        """Return the run directory if this config may run there. Writes nothing.

        Raises:
            ConfigError: the directory holds a run and resume is false, or there is no run to
                resume, or the run already has more rounds than the config.
            CheckpointError: the checkpoint belongs to another config, or cannot be read.
        """
        name = config.name or f"{config.method}-{time.strftime('%Y%m%d-%H%M%S')}"
        run_dir = cls(Path(config.out) / name, config)
        if not config.resume:
            if (run_dir.path / RECORDS).exists():
                raise ConfigError(
                    f"{run_dir.path} holds a run already; give this run another name (--name), or "
                    "resume that run (--resume)"
                )
            return run_dir
        if not run_dir.path.exists():
            raise ConfigError(f"there is no run in {run_dir.path} to resume")
        head, warnings = newest_head(run_dir.path / CHECKPOINTS)
        if head is None and warnings:
            raise CheckpointError(f"no checkpoint can be read: {'; '.join(warnings)}")
        saved = run_dir._saved_config
        has_records = (run_dir.path / RECORDS).exists()
        if head is None and has_records and not saved.keeps_checkpoints:
            raise CheckpointError(
                f"{run_dir.path} kept no checkpoint (server.checkpoint-every was 0)"
            )
        was = head.fingerprint if head else saved.fingerprint
        if was and was != fingerprint(config):
            raise CheckpointError(
                f"{run_dir.path} was run with another config ({saved.changes(config)}); give this "
                "run another name, or the config it was started with"
            )
        if head and head.round > config.rounds:
            raise ConfigError(
                f"{run_dir.path} has done {head.round} rounds already, and rounds is "
                f"{config.rounds}; set rounds to {head.round} or more (--set rounds=N), or "
                f"resume with all of its settings (--config {run_dir.path / CONFIG_FILE})"
            )
        return run_dir

    @classmethod
    def open(cls, config: RunConfig) -> "RunDir":
        """Claim the directory and make it. A new run's config is written into it.

        Raises:
            ConfigError, CheckpointError: see `claim`.
        """
        run_dir = cls.claim(config)
        if not (run_dir.path / RECORDS).exists():
            run_dir._write_config()
        clear_outcome(run_dir.path)
        return run_dir

    @property
    def start(self) -> tuple[int, list[str]]:
        """The last round of the run, 0 for a new run, and a warning for each torn checkpoint."""
        head, warnings = newest_head(self.path / CHECKPOINTS) if self.config.resume else (None, [])
        return head.round if head else 0, warnings

    @property
    def is_complete(self) -> bool:
        """Whether the run to resume has no rounds left."""
        outcome = read_outcome(self.path) if self.config.resume else None
        done = outcome is not None and outcome.status == "completed"
        return done and self.start[0] == self.config.rounds

    @property
    def _saved_config(self) -> SavedConfig:
        return SavedConfig(self.path / CONFIG_FILE)

    def _write_config(self) -> None:
        try:
            self._saved_config.write(self.config)
        except OSError as error:
            raise ConfigError(f"the run cannot be written to {self.path}: {error}") from error

    @property
    def mapped(self) -> MemoryMappedVectors | None:
        """Maps clients' vectors to files, None without `server.on-disk`."""
        return MemoryMappedVectors(self.path / MAPPED) if self.config.server.on_disk else None

    def restore(self, layout: Layout) -> tuple[ServerState[Any] | None, list[str]]:
        """Return the state to resume from, None to start, and a warning for each torn checkpoint.

        Raises:
            CheckpointError: the checkpoint belongs to another model, none can be read, or a vector
                cannot be written.
        """
        if not self.config.resume:
            return None, []
        state, warnings = load_newest(
            self.path / CHECKPOINTS,
            self.config.chosen,
            layout,
            fingerprint=fingerprint(self.config),
            put=self.mapped.put if self.mapped else None,
        )
        if state is None and warnings:
            raise CheckpointError(f"no checkpoint can be read: {'; '.join(warnings)}")
        self._write_config()  # only now: a refused resume changes nothing
        Recorder(self.path / RECORDS).truncate_after(state.round if state else 0)
        return state, warnings

    def save_state(self, state: ServerState[Any]) -> None:
        """Write a checkpoint when one is due. Otherwise the end of the run writes it."""
        self.checkpoints.take(state)

    def save_record(self, record: RoundRecord) -> None:
        """Append one line to the records.

        Raises:
            RecordError: the line cannot be written, or the run directory was removed.
        """
        if not (self.path / CONFIG_FILE).exists():
            raise RecordError(f"{self.path} was removed or emptied during the run; start it again")
        Recorder(self.path / RECORDS).append(record)
        self.checkpoints.judge(record)

    def show_live(self, live: LiveState) -> None:
        """Write the live state."""
        self.live.show(live)

    def serving(self) -> AbstractContextManager[object]:
        """Lock the run for this process. The lock ends with the process.

        Raises:
            ConfigError: another process serves the run.
        """
        taken = ConfigError(
            f"the run in {self.path} is served by another ServerApp that is still running; "
            "wait for it, stop it, or give this run another name"
        )
        return file_lock(self.path / SERVING, taken)

    def finish(self, state: ServerState[Any], layout: Layout, seconds: float) -> None:
        """Write the final model, whole or not at all, and the outcome "completed".

        Raises:
            CheckpointError: the model cannot be written.
        """
        self.checkpoints.save_newest()
        named = {**layout.unflatten(state.weights), **state.buffers}
        path = self.path / WEIGHTS
        try:
            with atomic_write(path) as file:
                np.savez(file, allow_pickle=False, **named)
        except OSError as error:
            raise CheckpointError(f"the model cannot be written to {path}: {error}") from error
        void = sum(1 for record in read_records(self.path) if record.void)
        message = f"{self.config.rounds} rounds"
        if void:
            message += f", {void} of them void; the model is that of round {state.round}"
        write_outcome(self.path, Outcome("completed", message, state.round, seconds))

    def end_early(self, error: BaseException, rounds: int, seconds: float) -> None:
        """Write the outcome "stopped" or "failed".

        On `flwr stop`, as on SIGTERM, Flower ends the ServerApp with SystemExit.
        """
        if isinstance(error, KeyboardInterrupt | SystemExit):
            outcome = Outcome("stopped", "stopped by the user", rounds, seconds)
        else:
            text = str(error) if isinstance(error, FedError) else f"{type(error).__name__}: {error}"
            outcome = Outcome("failed", text, rounds, seconds)
        try:
            self.checkpoints.save_newest()
        except CheckpointError as second:  # the first error is the one to report
            logging.getLogger("flwr").warning("%s", second)
        write_outcome(self.path, outcome)


def rewind_run(path: Path, round: int) -> None:  # noqa: A002
    """Prepare the run in `path` to be resumed from the checkpoint of an earlier round.

    Raises:
        ConfigError: a running ServerApp serves the run.
        CheckpointError: there is no checkpoint of this round.
    """
    if is_served(path):
        raise ConfigError(f"the run in {path} is under way; stop it first")
    rewind(path / CHECKPOINTS, round)


def is_served(path: Path) -> bool:
    """Whether a running ServerApp serves the run in this directory."""
    try:
        with file_lock(path / SERVING, BlockingIOError()):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


@contextmanager
def logging_to(path: Path, *, alone: bool = False) -> Iterator[None]:
    """Write the log of Flower's logger to a file during the block.

    Args:
        path: the file.
        alone: write nowhere else.
    """
    logger = logging.getLogger("flwr")
    before, handler = list(logger.handlers), logging.FileHandler(path, encoding="utf-8")
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk raises elsewhere
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers[:] = [handler] if alone else [*before, handler]
    try:
        yield
    finally:
        logger.handlers[:] = before
        handler.close()
