"""RunDir: what a run leaves on disk, written as it happens."""

import logging
import time
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from common.config import NOT_IN_RESULTS, RunConfig, flatten, nested, parse
from common.errors import CheckpointError, ConfigError, FedError
from common.io.files import atomic_write, file_lock
from common.layout import Layout
from common.runs.live_state import LiveState, LiveStateFile
from common.runs.outcome import Outcome, clear_outcome, read_outcome, write_outcome
from common.runs.records import CONFIG_FILE, RECORDS, Recorder, RoundRecord
from server_app.run_dir.checkpoint import load_newest, newest_head, save
from server_app.run_dir.memory_mapped import MAPPED, MemoryMappedVectors
from server_app.state import ServerState

CHECKPOINTS = "checkpoints"
SERVING = "serving.lock"
LOG = "engine.log"  # what the ServerApp and its engine say
WEIGHTS = "weights.npz"
WHERE = ("name", "out", "resume")  # where a run is, not what it is


@dataclass(frozen=True)
class RunDir:
    """The folder `out/name` of one run."""

    path: Path
    config: RunConfig
    live: LiveStateFile = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "live", LiveStateFile(self.path))

    @classmethod
    def claim(cls, config: RunConfig) -> "RunDir":
        """Return the run's folder if this config may run there; nothing is written.

        Raises:
            ConfigError: it holds a run that this one does not resume, or there is no run to resume,
                or it has gone on for longer than this config wants.
            CheckpointError: its checkpoint was made with another config, or none can be read.
        """
        name = config.name or f"{config.method}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = cls(Path(config.out) / name, config)
        if not config.resume:
            if (folder.path / RECORDS).exists():
                raise ConfigError(
                    f"{folder.path} holds a run already; give this one another name (--name), or "
                    "go on with it (--resume)"
                )
            return folder
        if not folder.path.exists():
            raise ConfigError(f"there is no run in {folder.path} to go on with")
        head, warnings = newest_head(folder.path / CHECKPOINTS)
        if head is None and warnings:
            raise CheckpointError(f"no checkpoint can be read: {'; '.join(warnings)}")
        if head is None and (folder.path / RECORDS).exists() and not folder._keeps_checkpoints():
            raise CheckpointError(
                f"{folder.path} kept no checkpoint (server.checkpoint-every was 0)"
            )
        was = head.fingerprint if head else folder._written_fingerprint()
        if was and was != config.fingerprint():
            raise CheckpointError(
                f"{folder.path} was run with another config ({folder._changes()}); give this run "
                "another name, or the config it was started with"
            )
        if head and head.round > config.rounds:
            raise ConfigError(
                f"{folder.path} has done {head.round} rounds already, and rounds is "
                f"{config.rounds}; set rounds to {head.round} or more (--set rounds=N), or go on "
                f"with all of its settings (--config {folder.path / CONFIG_FILE})"
            )
        return folder

    @classmethod
    def open(cls, config: RunConfig) -> "RunDir":
        """Claim the folder and make it; a new run's exact config is written into it.

        Raises:
            ConfigError, CheckpointError: see `claim`.
        """
        folder = cls.claim(config)
        if not (folder.path / RECORDS).exists():
            folder._write_config()
        clear_outcome(folder.path)
        return folder

    @property
    def start(self) -> tuple[int, list[str]]:
        """The round to go on after, 0 for a new run, and a warning for each torn checkpoint."""
        head, warnings = newest_head(self.path / CHECKPOINTS) if self.config.resume else (None, [])
        return head.round if head else 0, warnings

    @property
    def is_complete(self) -> bool:
        """Whether a run to be resumed has nothing left to do."""
        outcome = read_outcome(self.path) if self.config.resume else None
        done = outcome is not None and outcome.status == "completed"
        return done and self.start[0] == self.config.rounds

    def _written(self) -> dict[str, Any]:
        """Return the config that the folder's run was started with; empty if it is lost."""
        try:
            return flatten(tomllib.loads((self.path / CONFIG_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _keeps_checkpoints(self) -> bool:
        return self._written().get("server.checkpoint-every") != 0

    def _written_fingerprint(self) -> str:
        """Return that of the config that was written; "" if it is lost or cannot be read."""
        written = self._written()
        with suppress(ConfigError):
            return parse(written).fingerprint() if written else ""
        return ""

    def _changes(self) -> str:
        written, mine = self._written(), self.config.to_flat()
        if not written:
            return f"which one is not known, for its {CONFIG_FILE} is lost"
        was = {**RunConfig().to_flat(), **written}  # what it lacks came later
        changes = [
            f"{key} was {was[key]!r}, is {mine[key]!r}"
            for key in mine
            if key not in NOT_IN_RESULTS and was[key] != mine[key]
        ]
        alike = f"its {CONFIG_FILE} says the same, so perhaps another version of FedKeel made it"
        return "; ".join(changes) or alike

    def _write_config(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            flat = {k: v for k, v in self.config.to_flat().items() if k not in WHERE}
            with atomic_write(self.path / CONFIG_FILE) as file:
                tomli_w.dump(nested(flat), file)
        except OSError as error:
            raise ConfigError(f"the run cannot be written to {self.path}: {error}") from error

    @property
    def mapped(self) -> MemoryMappedVectors | None:
        """Where vectors of clients are put, if they are."""
        return MemoryMappedVectors(self.path / MAPPED) if self.config.server.on_disk else None

    def restore(self, layout: Layout) -> tuple[ServerState[Any] | None, list[str]]:
        """Return the state to go on from, or None to start, and warnings about torn files.

        Raises:
            CheckpointError: the checkpoint is another model's, none of them can be read, or the
                disk refuses a vector.
        """
        if not self.config.resume:
            return None, []
        state, warnings = load_newest(
            self.path / CHECKPOINTS,
            self.config.chosen,
            layout,
            fingerprint=self.config.fingerprint(),
            put=self.mapped.put if self.mapped else None,
        )
        if state is None and warnings:
            raise CheckpointError(f"no checkpoint can be read: {'; '.join(warnings)}")
        self._write_config()  # not before: a refused resume leaves the run as it was
        Recorder(self.path / RECORDS).truncate_after(state.round if state else 0)
        return state, warnings

    def save_state(self, state: ServerState[Any]) -> None:
        """Write a checkpoint when one is due."""
        every = self.config.server.checkpoint_every
        if every and (state.round % every == 0 or state.round == self.config.rounds):
            save(
                self.path / CHECKPOINTS,
                state,
                fingerprint=self.config.fingerprint(),
                keep=self.config.server.keep_checkpoints,
            )

    def save_record(self, record: RoundRecord) -> None:
        """Append one line to the records."""
        Recorder(self.path / RECORDS).append(record)

    def show_live(self, live: LiveState) -> None:
        """Say what is going on at this moment."""
        self.live.show(live)

    def serving(self) -> AbstractContextManager[object]:
        """Keep every other process from serving this run; the lock dies with its holder.

        Raises:
            ConfigError: somebody else does.
        """
        taken = ConfigError(
            f"the run in {self.path} is being served already, by a ServerApp that still lives; "
            "wait for it, stop it, or give this run another name"
        )
        return file_lock(self.path / SERVING, taken)

    def finish(self, state: ServerState[Any], layout: Layout, seconds: float) -> None:
        """Write the final model by name, whole or not at all, and that the run is complete.

        Raises:
            CheckpointError: the model cannot be written.
        """
        named = {**layout.unflatten(state.weights), **state.buffers}
        path = self.path / WEIGHTS
        try:
            with atomic_write(path) as file:
                np.savez(file, allow_pickle=False, **named)
        except OSError as error:
            raise CheckpointError(f"the model cannot be written to {path}: {error}") from error
        message = f"{state.round} rounds"
        write_outcome(self.path, Outcome("completed", message, state.round, seconds))

    def end_early(self, error: BaseException, rounds: int, seconds: float) -> None:
        """Write why the run ended early: it failed, or somebody stopped it.

        On `flwr stop`, as on SIGTERM, Flower ends the ServerApp with SystemExit.
        """
        if isinstance(error, KeyboardInterrupt | SystemExit):
            outcome = Outcome("stopped", "stopped by the user", rounds, seconds)
        else:
            said = str(error) if isinstance(error, FedError) else f"{type(error).__name__}: {error}"
            outcome = Outcome("failed", said, rounds, seconds)
        write_outcome(self.path, outcome)


def is_served(path: Path) -> bool:
    """Whether a ServerApp that lives is at work on the run in this folder."""
    try:
        with file_lock(path / SERVING, BlockingIOError()):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


@contextmanager
def logging_to(path: Path, *, alone: bool = False) -> Iterator[None]:
    """Write what Flower's logger says into a file, one line an event.

    With `alone` it says it nowhere else meanwhile.
    """
    logger = logging.getLogger("flwr")
    before, handler = list(logger.handlers), logging.FileHandler(path, encoding="utf-8")
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk is told
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers[:] = [handler] if alone else [*before, handler]
    try:
        yield
    finally:
        logger.handlers[:] = before
        handler.close()
