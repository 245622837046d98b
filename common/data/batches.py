"""Whole batches at once, on the device where they are: normalise, crop, flip. Imports torch."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as pad_borders

from common.errors import DataError


def normalise(batch: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
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
    means = torch.tensor(mean, dtype=torch.float32, device=batch.device).view(1, -1, 1, 1)
    stds = torch.tensor(std, dtype=torch.float32, device=batch.device).view(1, -1, 1, 1)
    return batch.to(torch.float32).div_(255).sub_(means).div_(stds)


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
