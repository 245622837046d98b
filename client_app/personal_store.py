"""The personal models of a client on its own disk, one file per round.

This is the only state that a client keeps. All other state of a method is on the server (see
common.methods). A file stays as long as the run may be resumed from a round before it. Files of
rounds that are repeated after a resume are deleted.
"""

import hashlib
import logging
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from client_app.client_data import ClientData
from common.errors import ClientError
from common.io.files import atomic_write
from common.layout import Layout
from common.run_identity import fingerprint
from common.types import Buffers, ClientId, Vector

PERSONAL = "personal"
FALLBACK = Path("~/.fedkeel/kept")
WEIGHTS = "weights"
VERSION = re.compile(r"round-(\d+)\.npz")
LONGEST = 100  # characters of a client id in the name of its folder
ABANDONED_SECONDS = 600.0  # age of a partial file after which it is deleted
logger = logging.getLogger("flwr")


def folder_of(client: ClientId) -> str:
    """Return the name of a client's folder: the quoted client id, or its digest if that is long."""
    text = quote(client.encode(errors="surrogatepass"), safe="")
    if len(text) <= LONGEST:
        return f"client-{text}"
    return f"client-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


@dataclass(frozen=True)
class PersonalModel:
    """The personal model of a client after `round`."""

    round: int
    weights: Vector
    buffers: Buffers


@dataclass(frozen=True)
class PersonalStore:
    """The saved personal models of one client in one run.

    Attributes:
        folder: where the files are. The first `save` creates it.
        layout: the layout of the model.
        span: number of rounds that a file is kept after a newer one.
    """

    folder: Path
    layout: Layout
    span: int

    @classmethod
    def of(cls, client: ClientData) -> "PersonalStore":
        """Return the store of a client.

        It is in the node's folder, else in the run directory if that is on this machine, else
        below ~/.fedkeel/kept.
        """
        config = client.config
        run = f"{config.name or config.method}-{fingerprint(config)}"
        run_dir = Path(config.out) / config.name
        if client.storage:
            base = Path(client.storage) / run
        elif config.name and run_dir.is_dir():
            base = run_dir
        else:
            base = FALLBACK.expanduser() / run
        server = config.server
        span = server.checkpoint_every * server.keep_checkpoints
        return cls(base / PERSONAL / folder_of(client.client_id), client.flat.layout, span)

    def latest(self, until_round: int) -> PersonalModel | None:
        """Return the newest personal model of `until_round` or before, None if there is none.

        A file that is damaged or belongs to another model is skipped with a warning.
        """
        for number in reversed(self._rounds()):
            if number > until_round:
                continue
            try:
                return self._read(number)
            except Exception as error:  # a damaged archive raises many kinds of errors
                path = self._path(number)
                logger.warning("%s cannot be used (%s); the file before it is used", path, error)
        return None

    def _read(self, number: int) -> PersonalModel:
        with self._path(number).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            values = {name: arrays[name] for name in arrays.files}
        weights = values.pop(WEIGHTS)
        buffers = {tensor.name: (tensor.shape, tensor.dtype) for tensor in self.layout.buffers}
        if weights.shape != (self.layout.size,) or buffers != {
            name: (value.shape, value.dtype.name) for name, value in values.items()
        }:
            raise ClientError("it belongs to another model")
        return PersonalModel(number, weights, values)

    def save(self, model: PersonalModel) -> None:
        """Save the personal model and delete the files that are no longer needed.

        Raises:
            ClientError: the file cannot be written.
        """
        try:
            for number in self._rounds():
                if number >= model.round:
                    self._path(number).unlink(missing_ok=True)
            with atomic_write(self._path(model.round)) as file:
                np.savez(file, allow_pickle=False, **{WEIGHTS: model.weights, **model.buffers})
            old = [number for number in self._rounds() if number < model.round - self.span]
            for number in old[:-1]:  # a resumed run may begin at the newest of them
                self._path(number).unlink(missing_ok=True)
            for partial in self.folder.glob(".*.partial"):  # left by a process that was killed
                with suppress(FileNotFoundError):  # another process has just renamed it
                    if time.time() - partial.stat().st_mtime > ABANDONED_SECONDS:
                        partial.unlink()
        except OSError as error:
            raise ClientError(f"the personal model cannot be saved: {error}") from error

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.npz"

    def _rounds(self) -> list[int]:
        matches = (VERSION.fullmatch(path.name) for path in self.folder.glob("round-*.npz"))
        return sorted(int(match[1]) for match in matches if match)
