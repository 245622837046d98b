"""ClientVectors: one flat vector per client, with the round in which it was last seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from common.types import ClientId, Vector, by_client


class Entry(NamedTuple):
    """A client's vector and the round in which it came."""

    round: int
    vector: Vector


@dataclass(frozen=True)
class ClientVectors:
    """An immutable map from client to Entry, sorted by client.

    Vectors are shared by reference and never written to, so a new version copies a small dict and
    no vectors.
    """

    entries: Mapping[ClientId, Entry] = field(default_factory=dict)

    def put(self, round: int, vectors: Mapping[ClientId, Vector]) -> "ClientVectors":  # noqa: A002
        """Return a version in which these clients have these vectors, seen in `round`."""
        merged = {**self.entries, **{c: Entry(round, v) for c, v in vectors.items()}}
        return ClientVectors(dict(sorted(merged.items(), key=lambda item: by_client(item[0]))))

    def since(self, round: int) -> "ClientVectors":  # noqa: A002 - the field's own name
        """Return a version without the entries seen before `round`."""
        return ClientVectors({c: e for c, e in self.entries.items() if e.round >= round})

    def get(self, client: ClientId) -> Vector | None:
        """Return the client's vector, or None if there is none."""
        entry = self.entries.get(client)
        return None if entry is None else entry.vector

    @property
    def nbytes(self) -> int:
        """Size of the vectors in bytes."""
        return sum(entry.vector.nbytes for entry in self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)
