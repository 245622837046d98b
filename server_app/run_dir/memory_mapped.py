"""MemoryMappedVectors: the clients' vectors in a method's state, in memory-mapped files.

The operating system keeps as much of the vectors in memory as is free. A file is unlinked as soon
as it is mapped, so its space is freed with the last use of the vector, also after a `kill -9`. A
mapping keeps its file open, so each vector counts towards the limit of open files.
"""

import resource
import tempfile
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from common.client_vectors import ClientVectors, Entry
from common.errors import CheckpointError, ConfigError
from common.types import Vector
from server_app.state.server_state import ServerState

S = TypeVar("S")
MAPPED = "mapped"  # in the run directory
SPARE = 500  # open files or mappings that the server needs for other purposes
MAPPINGS = Path("/proc/sys/vm/max_map_count")  # limit of a process, on Linux only
MAPPED_NOW = Path("/proc/self/maps")


def raise_open_file_limit(vectors: int) -> None:
    """Raise the limit of open files to `vectors` and a reserve.

    Raises:
        ConfigError: the system does not allow so many. The message names the limit.
    """
    needed = vectors + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        except (ValueError, OSError):  # more than `hard` or than the limit of the system
            raise _too_many(
                vectors,
                f"{max(soft, hard)} open files (`ulimit -Hn`), and {needed} are needed; raise that "
                "(nofile in /etc/security/limits.conf, LimitNOFILE of a systemd unit, --ulimit of "
                "a container)",
            ) from None
    if not MAPPINGS.exists():
        return
    needed += len(MAPPED_NOW.read_bytes().splitlines())  # libraries have some hundred mappings
    if (most := int(MAPPINGS.read_text())) < needed:
        raise _too_many(
            vectors,
            f"{most} mappings (vm.max_map_count), and {needed} are needed; raise that (`sysctl -w "
            f"vm.max_map_count={needed}`)",
        )


def _too_many(vectors: int, why: str) -> ConfigError:
    return ConfigError(
        f"server.on-disk keeps up to {vectors} vectors of clients, each in a file that stays open. "
        f"The system allows a process {why}, let the method remember fewer clients, or set "
        "server.on-disk to false"
    )


class MemoryMapError(CheckpointError):
    """A vector cannot be written to a file."""


@dataclass(frozen=True)
class MemoryMappedVectors:
    """Moves vectors into files in `folder`, which is created if it is missing."""

    folder: Path

    def __call__(self, state: ServerState[S]) -> ServerState[S]:
        """Return an equal state whose clients' vectors are all in files.

        Raises:
            MemoryMapError: a vector cannot be written.
        """
        return replace(state, method=self._moved(state.method))

    def _moved(self, value: Any) -> Any:
        if isinstance(value, ClientVectors):
            entries = value.entries.items()
            return ClientVectors({c: Entry(e.round, self.put(e.vector)) for c, e in entries})
        if is_dataclass(value) and not isinstance(value, type):
            parts = {item.name: getattr(value, item.name) for item in fields(value)}
            return replace(value, **{name: self._moved(part) for name, part in parts.items()})
        return value

    def put(self, vector: Vector) -> Vector:
        """Return an equal vector that is in a file.

        Raises:
            MemoryMapError: the vector cannot be written.
        """
        if isinstance(vector.base, np.memmap) or not vector.size:
            return vector
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(np.ascontiguousarray(vector).data)  # tofile() hides a full disk
                file.flush()
                return np.asarray(np.memmap(file, vector.dtype, "r", shape=vector.shape))
        except OSError as error:
            raise MemoryMapError(
                f"a client's vector cannot be put into a file of the folder {self.folder}: "
                f"{error}; make room (on the disk, or with `ulimit -n`: each is an open file), or "
                "set server.on-disk to false"
            ) from error
