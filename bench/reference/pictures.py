"""CIFAR-10's binary files, read and dealt with NumPy."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.work import Work

FILES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def read(work: Work) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all pictures [n, 3, 32, 32] and labels [n]."""
    home = Path(work.root) / "cifar-10-batches-bin"
    rows = np.concatenate([np.fromfile(home / name, np.uint8) for name in FILES])
    rows = rows.reshape(-1, 1 + 3 * 32 * 32)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def normalised(work: Work) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return all pictures as a model wants them, and labels."""
    pixels, labels = read(work)
    images = pixels.astype(np.float32)
    images /= 255
    images -= np.array(MEAN, np.float32)[:, None, None]
    images /= np.array(STD, np.float32)[:, None, None]
    return images, labels


def deal(work: Work) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the train [clients, train] and test [clients, test] pictures of each client."""
    each = work.train + work.test
    order = np.random.default_rng(work.seed).permutation(work.clients * each)
    dealt = order.reshape(work.clients, each)
    return dealt[:, : work.train], dealt[:, work.train :]
