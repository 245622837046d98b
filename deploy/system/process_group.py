"""Processes that end together, and with us even when we are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from common.errors import DeployError

LAST_SECONDS = 10.0
REINSTALL = "is Flower installed in this environment (fedkeel doctor)?"


def bin_folder() -> Path:
    """Return where this environment keeps its commands."""
    return Path(sys.prefix) / "bin"


class ProcessGroup:
    """A process group whose leader takes it down when we are gone.

    The leader waits for the end of a pipe that only we hold open, and then kills the whole group:
    a kill -9 of ours leaves nothing behind, not even an app process that hangs.
    """

    def __init__(self) -> None:
        self._leader = subprocess.Popen(
            ["/bin/sh", "-c", "read _; kill -KILL 0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        out: int | IO[bytes],
    ) -> "subprocess.Popen[bytes]":
        """Start a command in the group, its output going to `out`.

        Raises:
            DeployError: it cannot be started.
        """
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=self._leader.pid,
            )
        except OSError as error:
            raise DeployError(f"{command[0]} cannot be started: {error}; {REINSTALL}") from error
        self._started = [one for one in self._started if one.poll() is None] + [process]
        return process

    def has_leader(self) -> bool:
        """Whether the leader lives; without it the group is gone."""
        return self._leader.poll() is None

    def end(self, *first: "subprocess.Popen[bytes]", patience: float = LAST_SECONDS) -> None:
        """Ask `first` to end, then kill whatever is left of the group."""
        for process in first:
            process.terminate()
        for process in first:
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        with suppress(ProcessLookupError):
            os.killpg(self._leader.pid, signal.SIGKILL)
        for process in (self._leader, *self._started):
            process.wait()
        if self._leader.stdin:
            with suppress(OSError):
                self._leader.stdin.close()
