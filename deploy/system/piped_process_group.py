"""A process group that passes each line of its members' output to a callback."""

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.system.process_group import ProcessGroup

LONGEST_LINE = 2**13  # bytes, longer lines are split
LAST_LINES_SECONDS = 5.0


class PipedProcessGroup:
    """A process group as a context manager. Leaving the block ends all of its processes."""

    def __init__(self, folder: Path, environment: Mapping[str, str], timeout: float) -> None:
        """Start the group.

        Args:
            folder: Working directory of the members.
            environment: All environment variables of the members.
            timeout: Seconds until the first member is killed after the block ends.
        """
        self.folder, self.environment, self.timeout = folder, environment, timeout
        self.members: list[subprocess.Popen[bytes]] = []
        self._listeners: list[threading.Thread] = []
        self._group = ProcessGroup()

    def start(
        self, command: Sequence[str], listen: Callable[[str], None]
    ) -> "subprocess.Popen[bytes]":
        """Start a member. A thread calls `listen` with each line of its output.

        Raises:
            DeployError: The command cannot be started.
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
        """Return whether all members are running."""
        return self._group.has_leader() and all(member.poll() is None for member in self.members)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Terminate the first member, wait until the timeout, then kill the whole group."""
        self._group.end(*self.members[:1], timeout=self.timeout)
        for listener in self._listeners:
            listener.join(LAST_LINES_SECONDS)


def _listen(read: int, listen: Callable[[str], None]) -> None:
    with os.fdopen(read, "rb") as lines:
        for line in iter(lambda: lines.readline(LONGEST_LINE), b""):
            listen(line.decode(errors="replace").rstrip("\r\n"))
