"""The vectors of a method on the wire: little-endian float32 bytes with a digest."""

import hashlib
from collections.abc import Mapping

import numpy as np
from flwr.app import ConfigRecord

from common.errors import WireError
from common.types import Vector

VECTOR = "fedkeel."  # prefix of the keys: "fedkeel.shift" and "fedkeel.shift.digest"


def put_vectors(config: ConfigRecord, vectors: Mapping[str, Vector]) -> None:
    """Write a method's vectors into the record as little-endian float32 bytes with a digest."""
    for name, vector in vectors.items():
        data = np.ascontiguousarray(vector, dtype="<f4").tobytes()
        config[VECTOR + name] = data
        config[f"{VECTOR}{name}.digest"] = hashlib.blake2b(data, digest_size=8).digest()


def get_vectors(config: ConfigRecord) -> dict[str, Vector]:
    """Return a method's vectors by name.

    Raises:
        WireError: the bytes are damaged.
    """
    vectors: dict[str, Vector] = {}
    for key, data in config.items():
        if not key.startswith(VECTOR) or key.endswith(".digest"):
            continue
        name = key.removeprefix(VECTOR)
        if not isinstance(data, bytes) or len(data) % 4:
            raise WireError(f'the vector "{name}" is not a whole number of float32 values')
        if hashlib.blake2b(data, digest_size=8).digest() != config.get(key + ".digest"):
            raise WireError(f'the vector "{name}" does not match its digest')
        vectors[name] = np.frombuffer(data, dtype="<f4")
    return vectors
