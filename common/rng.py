"""Random draws by address: each one comes from (seed, purpose, *path), not a shared stream.

So a draw does not depend on earlier draws. Results are the same with one worker or many, and with
or without a resume. Methods with the same seed get the same cohorts and batches.
"""

import hashlib

import numpy as np


def address(seed: int, purpose: str, *path: int | str) -> int:
    """Return the 128-bit number of (seed, purpose, *path), the same on every machine."""
    text = "\x1f".join([str(seed), purpose, *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, purpose: str, *path: int | str) -> np.random.Generator:
    """Return the independent generator at the address (seed, purpose, *path).

    >>> int(stream(1, "cohort", 3).integers(100)) == int(stream(1, "cohort", 3).integers(100))
    True
    """
    return np.random.Generator(np.random.PCG64(address(seed, purpose, *path)))
