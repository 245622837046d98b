"""What a client keeps of its own from round to round: versions of its model, on its own disk.

Everything else that a method remembers is the server's (see common.methods). A version says after
which round it is the client's model, and stays for as long as a run may be resumed from a round
before it; versions of rounds that are done again are of no use to anybody and go.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from client_app.local import Local
from common.errors import ClientError
from common.files import replacing
from common.layout import Layout
from common.types import Buffers, Vector

PERSONAL = "personal"
FALLBACK = Path("~/.fedkeel/kept")
WEIGHTS = "weights"


@dataclass(frozen=True)
class Kept:
    """A client's own model after `round`."""

    round: int
    weights: Vector
    buffers: Buffers


@dataclass(frozen=True)
class Keepsake:
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
    def of(cls, local: Local) -> "Keepsake":
        """Return the place of a client's own model: its node's folder, or the run's if it is here.

        Where neither is known, it lies below ~/.fedkeel/kept.
        """
        config = local.config
        run = f"{config.name or config.method}-{config.fingerprint()}"
        here = Path(config.out) / config.name
        if local.keep:
            base = Path(local.keep) / run
        elif config.name and here.is_dir():
            base = here
        else:
            base = FALLBACK.expanduser() / run
        server = config.server
        span = server.checkpoint_every * server.keep_checkpoints
        folder = base / PERSONAL / f"client-{quote(local.client, safe='')}"
        return cls(folder, local.flat.layout, span)

    def newest(self, until: int) -> Kept | None:
        """Return the client's own model as it was after round `until`, None if it had none yet.

        Raises:
            ClientError: the file is damaged, or of another model.
        """
        rounds = [number for number in self._rounds() if number <= until]
        if not rounds:
            return None
        path = self._path(rounds[-1])
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                values = {name: arrays[name] for name in arrays.files}
        except Exception as error:  # a damaged archive trips its readers in many ways
            raise ClientError(f"{path} cannot be read ({error}): remove it") from error
        weights = values.pop(WEIGHTS, np.zeros(0))
        buffers = {tensor.name: (tensor.shape, tensor.dtype) for tensor in self.layout.buffers}
        if weights.shape != (self.layout.size,) or buffers != {
            name: (value.shape, value.dtype.name) for name, value in values.items()
        }:
            raise ClientError(f"{path} holds another model than this run's: remove it")
        return Kept(rounds[-1], weights, values)

    def put(self, kept: Kept) -> None:
        """Keep the client's own model as it is after `kept.round`.

        Raises:
            ClientError: the disk refuses it.
        """
        try:
            for number in self._rounds():
                if number >= kept.round:
                    self._path(number).unlink(missing_ok=True)
            with replacing(self._path(kept.round)) as file:
                np.savez(file, allow_pickle=False, **{WEIGHTS: kept.weights, **kept.buffers})
            old = [number for number in self._rounds() if number < kept.round - self.span]
            for number in old[:-1]:  # the newest of the old ones is where a resumed run begins
                self._path(number).unlink(missing_ok=True)
        except OSError as error:
            raise ClientError(f"this client's own model cannot be kept: {error}") from error

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.npz"

    def _rounds(self) -> list[int]:
        names = self.folder.glob("round-*.npz")
        return sorted(int(path.stem.removeprefix("round-")) for path in names)
