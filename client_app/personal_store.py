"""What a client keeps of its own from round to round: versions of its model, on its own disk.

Everything else that a method remembers is the server's (see common.methods). A version says after
which round it is the client's model, and stays for as long as a run may be resumed from a round
before it; versions of rounds that are done again are of no use to anybody and go.
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
from common.types import Buffers, ClientId, Vector

PERSONAL = "personal"
FALLBACK = Path("~/.fedkeel/kept")
WEIGHTS = "weights"
VERSION = re.compile(r"round-(\d+)\.npz")
LONGEST = 100  # characters of a client's name in that of its folder
ABANDONED_SECONDS = 600.0  # a file that has been half written for so long is nobody's
logger = logging.getLogger("flwr")


def folder_of(client: ClientId) -> str:
    """Return a folder's name for a client: its own where that can be read, else a digest of it."""
    text = quote(client.encode(errors="surrogatepass"), safe="")
    if len(text) <= LONGEST:
        return f"client-{text}"
    return f"client-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


@dataclass(frozen=True)
class PersonalModel:
    """A client's own model after `round`."""

    round: int
    weights: Vector
    buffers: Buffers


@dataclass(frozen=True)
class PersonalStore:
    """The versions of one client's own model in one run, a file each in `folder`.

    Attributes:
        folder: made when the first version is written.
        layout: of the model.
        span: for how many rounds a version is kept after a newer one was written.
    """

    folder: Path
    layout: Layout
    span: int

    @classmethod
    def of(cls, client: ClientData) -> "PersonalStore":
        """Return the place of a client's own model: its node's folder, or the run's if it is here.

        Where neither is known, it lies below ~/.fedkeel/kept.
        """
        config = client.config
        run = f"{config.name or config.method}-{config.fingerprint()}"
        here = Path(config.out) / config.name
        if client.storage:
            base = Path(client.storage) / run
        elif config.name and here.is_dir():
            base = here
        else:
            base = FALLBACK.expanduser() / run
        server = config.server
        span = server.checkpoint_every * server.keep_checkpoints
        return cls(base / PERSONAL / folder_of(client.client_id), client.flat.layout, span)

    def latest(self, until_round: int) -> PersonalModel | None:
        """Return the client's own model as it was after `until_round`, None if it had none yet.

        A version that is damaged, or of another model, is passed over, with a warning.
        """
        for number in reversed(self._rounds()):
            if number > until_round:
                continue
            try:
                return self._read(number)
            except Exception as error:  # a damaged archive trips its readers in many ways
                path = self._path(number)
                logger.warning("%s cannot be used (%s); going back to the one before", path, error)
        return None

    def _read(self, number: int) -> PersonalModel:
        with self._path(number).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            values = {name: arrays[name] for name in arrays.files}
        weights = values.pop(WEIGHTS)
        buffers = {tensor.name: (tensor.shape, tensor.dtype) for tensor in self.layout.buffers}
        if weights.shape != (self.layout.size,) or buffers != {
            name: (value.shape, value.dtype.name) for name, value in values.items()
        }:
            raise ClientError("it is of another model")
        return PersonalModel(number, weights, values)

    def save(self, model: PersonalModel) -> None:
        """Keep the client's own model as it is after `model.round`.

        Raises:
            ClientError: the disk refuses it.
        """
        try:
            for number in self._rounds():
                if number >= model.round:
                    self._path(number).unlink(missing_ok=True)
            with atomic_write(self._path(model.round)) as file:
                np.savez(file, allow_pickle=False, **{WEIGHTS: model.weights, **model.buffers})
            old = [number for number in self._rounds() if number < model.round - self.span]
            for number in old[:-1]:  # the newest of the old ones is where a resumed run begins
                self._path(number).unlink(missing_ok=True)
            for partial in self.folder.glob(".*.partial"):  # of a process that was killed
                with suppress(FileNotFoundError):  # or of another, which has just finished
                    if time.time() - partial.stat().st_mtime > ABANDONED_SECONDS:
                        partial.unlink()
        except OSError as error:
            raise ClientError(f"this client's own model cannot be kept: {error}") from error

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.npz"

    def _rounds(self) -> list[int]:
        found = (VERSION.fullmatch(path.name) for path in self.folder.glob("round-*.npz"))
        return sorted(int(version[1]) for version in found if version)
