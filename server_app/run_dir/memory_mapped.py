"""What a method remembers of its clients, in files instead of in memory.

The vectors are the same arrays to whoever reads them, but mapped: the system holds as much of
them in memory as it has to spare. A file loses its name as soon as it is mapped, so its space is
free again with the last use of the vector, and after a `kill -9` too. But a mapping holds its file
open, so each vector is one of the files that the system lets a process have open.
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
from server_app.state import ServerState

S = TypeVar("S")
MAPPED = "mapped"  # folder of a run
SPARE = 500  # open files, or further mappings, of a server beside its vectors, with room
MAPPINGS = Path("/proc/sys/vm/max_map_count")  # of a process, at most; Linux has it
MAPPED_NOW = Path("/proc/self/maps")


def raise_open_file_limit(vectors: int) -> None:
    """Let this process have that many files open and mapped, and some hundred more.

    Raises:
        ConfigError: the system does not let it; the message names the limit.
    """
    needed = vectors + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        except (ValueError, OSError):  # it is more than `hard`, or than the system has at all
            raise _too_many(
                vectors,
                f"{max(soft, hard)} open files (`ulimit -Hn`), and {needed} are needed; raise that "
                "(nofile in /etc/security/limits.conf, LimitNOFILE of a systemd unit, --ulimit of "
                "a container)",
            ) from None
    if not MAPPINGS.exists():
        return
    needed += len(MAPPED_NOW.read_bytes().splitlines())  # libraries have some hundred
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
    """The disk refuses a vector."""


@dataclass(frozen=True)
class MemoryMappedVectors:
    """Puts vectors into files of `folder`, which is made if it is missing."""

    folder: Path

    def __call__(self, state: ServerState[S]) -> ServerState[S]:
        """Return an equal state whose clients' vectors are all in files.

        Raises:
            MemoryMapError: the disk refuses one.
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
            MemoryMapError: the disk refuses it.
        """
        if isinstance(vector.base, np.memmap) or not vector.size:
            return vector
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(np.ascontiguousarray(vector).data)  # tofile() would hide a full disk
                file.flush()
                return np.asarray(np.memmap(file, vector.dtype, "r", shape=vector.shape))
        except OSError as error:
            raise MemoryMapError(
                f"a client's vector cannot be put into a file of the folder {self.folder}: "
                f"{error}; make room (on the disk, or with `ulimit -n`: each is an open file), or "
                "set server.on-disk to false"
            ) from error
