"""A process group that ends with this process, even on SIGKILL."""

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
    """Return the folder of this Python environment's commands."""
    return Path(sys.prefix) / "bin"


class ProcessGroup:
    """A process group whose leader kills it when this process ends.

    The leader waits for the end of a pipe that only this process holds open. Then it kills the
    whole group. So even a kill -9 of this process leaves no member behind.
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
        """Start a command in the group and write its output to `out`.

        Raises:
            DeployError: The command cannot be started.
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
        self._started = [started for started in self._started if started.poll() is None] + [process]
        return process

    def has_leader(self) -> bool:
        """Return whether the leader is running. Without the leader, the group is gone."""
        return self._leader.poll() is None

    def end(self, *first: "subprocess.Popen[bytes]", timeout: float = LAST_SECONDS) -> None:
        """Terminate `first`, wait at most `timeout` seconds for each, then kill the whole group."""
        for process in first:
            process.terminate()
        for process in first:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout)
        with suppress(ProcessLookupError):
            os.killpg(self._leader.pid, signal.SIGKILL)
        for process in (self._leader, *self._started):
            process.wait()
        if self._leader.stdin:
            with suppress(OSError):
                self._leader.stdin.close()
