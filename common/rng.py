"""Chance by address: every draw comes from (seed, purpose, *path), never from a shared stream.

So a draw does not depend on what was drawn before it: results are the same with one worker or
many, straight through or resumed, and methods of one seed meet the same cohorts and batches.
"""

import hashlib

import numpy as np


def address(seed: int, purpose: str, *path: int | str) -> int:
    """Return the 128-bit number that stands for (seed, purpose, *path) on every machine."""
    text = "\x1f".join([str(seed), purpose, *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, purpose: str, *path: int | str) -> np.random.Generator:
    """Return the independent generator at the address (seed, purpose, *path).

    >>> stream(1, "cohort", 3).integers(100) == stream(1, "cohort", 3).integers(100)
    True
    """
    return np.random.Generator(np.random.PCG64(address(seed, purpose, *path)))
