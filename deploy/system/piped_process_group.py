"""A process group whose members' lines are listened to."""

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.system.process_group import ProcessGroup

LONGEST_LINE = 2**13  # bytes; a longer one is told in pieces
LAST_LINES_SECONDS = 5.0


class PipedProcessGroup:
    """Members of one group; leaving the block ends them and whatever they started."""

    def __init__(self, folder: Path, environment: Mapping[str, str], patience: float) -> None:
        """Start the group.

        Args:
            folder: the working directory of the members.
            environment: theirs, whole.
            patience: seconds that the first member gets to end by itself on leaving the block.
        """
        self.folder, self.environment, self.patience = folder, environment, patience
        self.members: list[subprocess.Popen[bytes]] = []
        self._listeners: list[threading.Thread] = []
        self._group = ProcessGroup()

    def start(
        self, command: Sequence[str], listen: Callable[[str], None]
    ) -> "subprocess.Popen[bytes]":
        """Start a member; `listen` is called in a thread of its own with each line it writes.

        Raises:
            DeployError: there is no such command.
        """
        read, write = os.pipe()
        listener = threading.Thread(target=_listen, args=(read, listen), daemon=True)
        listener.start()
        self._listeners.append(listener)
        try:
            process = self._group.start(command, cwd=self.folder, env=self.environment, out=write)
        finally:
            os.close(write)
        self.members.append(process)
        return process

    def is_whole(self) -> bool:
        """Say whether all members still run."""
        return self._group.has_leader() and all(each.poll() is None for each in self.members)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ask the first member to end, give it time, then kill the whole group."""
        self._group.end(*self.members[:1], patience=self.patience)
        for listener in self._listeners:
            listener.join(LAST_LINES_SECONDS)


def _listen(read: int, listen: Callable[[str], None]) -> None:
    with os.fdopen(read, "rb") as lines:
        for line in iter(lambda: lines.readline(LONGEST_LINE), b""):
            listen(line.decode(errors="replace").rstrip("\r\n"))
