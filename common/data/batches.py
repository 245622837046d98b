"""Whole batches at once, on the device where they are: normalise, crop, flip. Imports torch."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad as pad_borders

from common.data.dataset import Dataset
from common.errors import DataError


def pictures(
    data: Dataset, chosen: NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the chosen pictures, uint8 [b, c, h, w], and their labels, int64 [b], on a device."""
    pixels = torch.from_numpy(data.images[chosen])
    return pixels.to(device), torch.from_numpy(data.labels[chosen]).to(device)


def normalise(batch: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (batch / 255 - mean) / std as float32 [b, c, h, w].

    Args:
        batch: uint8 [b, c, h, w].
        mean: one number a channel, of pixels scaled to 0..1.
        std: likewise, > 0.

    Raises:
        DataError: mean or std has another number of channels than the batch.
    """
    if not len(mean) == len(std) == batch.shape[1]:
        raise DataError(
            f"{batch.shape[1]} channels in the batch, but {len(mean)} means and {len(std)} stds"
        )
    scale, shift = _scale_and_shift(mean, std, batch.device)
    return batch.to(torch.float32).mul_(scale).add_(shift)


@lru_cache(maxsize=16)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    means, stds = (torch.tensor(x, dtype=torch.float64).view(1, -1, 1, 1) for x in (mean, std))
    return (1 / (255 * stds)).to(device, torch.float32), (-means / stds).to(device, torch.float32)


def augment(batch: Tensor, rng: np.random.Generator, *, pad: int = 4, flip: bool = True) -> Tensor:
    """Crop each picture at random out of its zero-padded self, and mirror half of them.

    The draws come from an addressed generator, so they do not depend on the device. Meant for the
    uint8 batch before `normalise`, so that the padding is black.

    Args:
        batch: [b, c, h, w], any dtype.
        rng: see `common.rng.stream`.
        pad: pixels added on each side; crops start at 0..2*pad.
        flip: whether to mirror left to right with probability 1/2.
    """
    count, channels, height, width = batch.shape
    tops, lefts = rng.integers(0, 2 * pad + 1, size=(2, count))
    mirrored = rng.random(count) < 0.5
    rows = tops[:, None] + np.arange(height)
    columns = lefts[:, None] + np.arange(width)
    if flip:
        columns[mirrored] = columns[mirrored, ::-1]
    picture = torch.arange(count, device=batch.device)[:, None, None, None]
    channel = torch.arange(channels, device=batch.device)[None, :, None, None]
    row = torch.from_numpy(rows).to(batch.device)[:, None, :, None]
    column = torch.from_numpy(columns).to(batch.device)[:, None, None, :]
    return pad_borders(batch, (pad, pad, pad, pad))[picture, channel, row, column]
