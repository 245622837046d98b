"""RunFolder: what a run leaves on disk, written as it happens."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from common.config import RunConfig
from common.errors import CheckpointError, ConfigError, FedError
from common.layout import Layout
from server_app.checkpoint import load_newest, save
from server_app.records import RECORDS, Outcome, Recorder, RoundRecord, clear_outcome, write_outcome
from server_app.state import ServerState

CONFIG_FILE = "config.toml"
CHECKPOINTS = "checkpoints"
WEIGHTS = "weights.npz"


@dataclass(frozen=True)
class RunFolder:
    """The folder `out/name` of one run."""

    path: Path
    config: RunConfig

    @classmethod
    def open(cls, config: RunConfig) -> "RunFolder":
        """Make the folder; a new run's exact config is written into it.

        Raises:
            ConfigError: it holds a run already, and this one does not resume it.
        """
        name = config.name or f"{config.method}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = cls(Path(config.out) / name, config)
        holds_run = (folder.path / RECORDS).exists()
        if holds_run and not config.resume:
            raise ConfigError(
                f"{folder.path} holds a run already; give this one another name, or go on with it "
                "(resume = true)"
            )
        if not holds_run:
            folder._write_config()
        clear_outcome(folder.path)
        return folder

    def _write_config(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            text = tomli_w.dumps(nested(self.config.to_flat()))
            (self.path / CONFIG_FILE).write_text(text)
        except OSError as error:
            raise ConfigError(f"the run cannot be written to {self.path}: {error}") from error

    def restore(self, layout: Layout) -> tuple[ServerState[Any] | None, list[str]]:
        """Return the state to go on from, or None to start, and warnings about torn files.

        Raises:
            CheckpointError: the checkpoint is another run's, none of them can be read, or the run
                kept none.
        """
        if not self.config.resume:
            return None, []
        state, warnings = load_newest(
            self.path / CHECKPOINTS,
            self.config.chosen,
            layout,
            fingerprint=self.config.fingerprint(),
        )
        if (
            state is None
            and (self.path / RECORDS).exists()
            and not self.config.server.checkpoint_every
        ):
            raise CheckpointError(f"{self.path} kept no checkpoint (server.checkpoint-every was 0)")
        if state is None and warnings:
            raise CheckpointError(f"no checkpoint can be read: {'; '.join(warnings)}")
        self._write_config()  # not before: a refused resume leaves the run as it was
        Recorder(self.path / RECORDS).truncate_after(state.round if state else 0)
        return state, warnings

    def keep(self, state: ServerState[Any]) -> None:
        """Write a checkpoint when one is due."""
        every = self.config.server.checkpoint_every
        if every and (state.round % every == 0 or state.round == self.config.rounds):
            save(
                self.path / CHECKPOINTS,
                state,
                fingerprint=self.config.fingerprint(),
                keep=self.config.server.keep_checkpoints,
            )

    def note(self, record: RoundRecord) -> None:
        """Append one line to the records."""
        Recorder(self.path / RECORDS).append(record)

    def finish(self, state: ServerState[Any], layout: Layout, seconds: float) -> None:
        """Write the final model by name, whole or not at all, and that the run is complete.

        Raises:
            CheckpointError: the model cannot be written.
        """
        named = {**layout.named(state.weights), **state.buffers}
        path = self.path / WEIGHTS
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **named)
            partial.replace(path)
        except OSError as error:
            raise CheckpointError(f"the model cannot be written to {path}: {error}") from error
        message = f"{state.round} rounds"
        write_outcome(self.path, Outcome("completed", message, state.round, seconds))

    def end_early(self, error: BaseException, rounds: int, seconds: float) -> None:
        """Write why the run ended early: it failed, or somebody stopped it."""
        if isinstance(error, KeyboardInterrupt):
            outcome = Outcome("stopped", "stopped by the user", rounds, seconds)
        else:
            said = str(error) if isinstance(error, FedError) else f"{type(error).__name__}: {error}"
            outcome = Outcome("failed", said, rounds, seconds)
        write_outcome(self.path, outcome)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into tables: {"train.lr": 1} -> {"train": {"lr": 1}}."""
    tables: dict[str, Any] = {}
    for name, value in flat.items():
        group, _, key = name.rpartition(".")
        (tables.setdefault(group, {}) if group else tables)[key] = value
    return tables
