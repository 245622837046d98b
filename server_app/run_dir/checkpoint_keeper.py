"""CheckpointKeeper: writes the checkpoints of a run, those that are due and the last good one."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config import RunConfig
from common.run_identity import fingerprint
from common.runs.records import RoundRecord
from server_app.run_dir.checkpoint import save
from server_app.state.server_state import ServerState


@dataclass
class CheckpointKeeper:
    """The checkpoints of one run.

    Attributes:
        folder: their directory.
        config: the run config.
        newest: the newest state if it has no checkpoint yet.
    """

    folder: Path
    config: RunConfig
    newest: ServerState[Any] | None = field(default=None, init=False)

    def take(self, state: ServerState[Any]) -> None:
        """Write the checkpoint of a new state if one is due, or else keep the state for the end.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """
        self.newest = state
        every = self.config.server.checkpoint_every
        if every and (state.round % every == 0 or state.round == self.config.rounds):
            self.save_newest()

    def judge(self, record: RoundRecord) -> None:
        """Give up the newest state if no client could train from it.

        Args:
            record: the record of the round after it.
        """
        if record.cohort and not record.replied:
            self.newest = None

    def save_newest(self) -> None:
        """Write the checkpoint of the newest state if it has none.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """
        if self.newest is None or not self.config.server.checkpoint_every:
            return
        keep = self.config.server.keep_checkpoints
        save(self.folder, self.newest, fingerprint=fingerprint(self.config), keep=keep)
        self.newest = None
