"""Whole batches at once, on the device where they are: normalise, crop, flip. Imports torch."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad as pad_borders

from common.data.dataset import Dataset
from common.errors import DataError

PAD = 4  # pixels around a picture out of which crops are taken
RESIDENT_SHARE = 0.25  # of a GPU's free memory, which a whole data set may take


def load_images(
    data: Dataset, chosen: NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the chosen pictures, uint8 [b, c, h, w], and their labels, int64 [b], on a device.

    A GPU with ample room holds the whole data set, and only the choice is sent there.
    """
    whole = _resident(data, device)
    if whole is None:
        pixels, labels = (
            torch.from_numpy(data.images[chosen]),
            torch.from_numpy(data.labels[chosen]),
        )
        return pixels.to(device), labels.to(device)
    here = torch.from_numpy(chosen).to(device)
    return whole[0][here], whole[1][here]


@lru_cache(maxsize=4)
def _resident(data: Dataset, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the whole data set on a GPU, if there is one and it has ample room; moved once."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    if data.images.nbytes > free * RESIDENT_SHARE:
        return None
    images, labels = np.array(data.images), np.array(data.labels)
    return torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)


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
    means, stds = _per_channel(mean, batch.device), _per_channel(std, batch.device)
    return batch.to(torch.float32).div_(255).sub_(means).div_(stds)


@lru_cache(maxsize=32)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return one number a channel [1, c, 1, 1]; moved once, for to move makes a GPU wait."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)


class RandomCrops(NamedTuple):
    """Where pictures are cropped, [n] each, and which of them are mirrored."""

    tops: NDArray[np.int64]
    lefts: NDArray[np.int64]
    mirrored: NDArray[np.bool_]

    @classmethod
    def draw(cls, count: int, rng: np.random.Generator, *, pad: int = PAD) -> "RandomCrops":
        """Draw for `count` pictures; from an addressed generator, so on no device.

        Args:
            count: number of pictures.
            rng: see `common.rng.stream`.
            pad: as for `augment`; crops start at 0..2*pad.
        """
        tops, lefts = rng.integers(0, 2 * pad + 1, size=(2, count))
        return cls(tops, lefts, rng.random(count) < 0.5)

    @classmethod
    def concatenate(cls, draws: Sequence["RandomCrops"]) -> "RandomCrops":
        """Return the draws for the pictures of all, one after another."""
        return cls(*map(np.concatenate, zip(*draws, strict=True)))


def augment(batch: Tensor, draws: RandomCrops, *, pad: int = PAD, flip: bool = True) -> Tensor:
    """Crop each picture as drawn out of its zero-padded self, and mirror those that are drawn.

    Meant for the uint8 batch before `normalise`, so that the padding is black.

    Args:
        batch: [b, c, h, w], any dtype.
        draws: for b pictures.
        pad: pixels added on each side.
        flip: whether to mirror left to right at all.
    """
    count, channels, height, width = batch.shape
    rows = draws.tops[:, None] + np.arange(height)
    columns = draws.lefts[:, None] + np.arange(width)
    if flip:
        columns[draws.mirrored] = columns[draws.mirrored, ::-1]
    picture = torch.arange(count, device=batch.device)[:, None, None, None]
    channel = torch.arange(channels, device=batch.device)[None, :, None, None]
    row = torch.from_numpy(rows).to(batch.device)[:, None, :, None]
    column = torch.from_numpy(columns).to(batch.device)[:, None, None, :]
    return pad_borders(batch, (pad, pad, pad, pad))[picture, channel, row, column]
