"""Batches of images on the device that trains: load, augment, normalise. Imports torch."""

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

PAD = 4  # pixels of black border around an image before it is cropped
RESIDENT_SHARE = 0.25  # largest share of a GPU's free memory that a data set may take


def load_images(
    data: Dataset, indices: NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return images, uint8 [b, c, h, w], and labels, int64 [b], on a device.

    A data set that fits easily on the GPU stays there, and only the indices are copied.

    Args:
        data: the data set.
        indices: which samples, int64 [b].
        device: where the tensors are needed.
    """
    resident = _resident(data, device)
    if resident is None:
        images = torch.from_numpy(data.images[indices])
        labels = torch.from_numpy(data.labels[indices])
        return images.to(device), labels.to(device)
    on_device = torch.from_numpy(indices).to(device)
    return resident[0][on_device], resident[1][on_device]


@lru_cache(maxsize=4)
def _resident(data: Dataset, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the whole data set on a GPU, or None where there is no GPU or too little room."""
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
        mean: one number per channel, of pixels scaled to 0..1.
        std: standard deviation per channel, > 0.

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
    """Return one number per channel as [1, c, 1, 1].

    Cached, because copying it on every call would stall the GPU.
    """
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)


class RandomCrops(NamedTuple):
    """Random crops and flips for n images.

    Attributes:
        tops: first row of each crop in the padded image, int64 [n].
        lefts: first column of each crop, int64 [n].
        mirrored: whether the crop is flipped left to right, bool [n].
    """

    tops: NDArray[np.int64]
    lefts: NDArray[np.int64]
    mirrored: NDArray[np.bool_]

    @classmethod
    def draw(cls, count: int, rng: np.random.Generator, *, pad: int = PAD) -> "RandomCrops":
        """Draw crops and flips for `count` images, the same on every device.

        Args:
            count: number of images.
            rng: an addressed generator, see `common.rng.stream`.
            pad: border in pixels, as for `augment`. Crops start at 0..2*pad.
        """
        tops, lefts = rng.integers(0, 2 * pad + 1, size=(2, count))
        return cls(tops, lefts, rng.random(count) < 0.5)

    @classmethod
    def concatenate(cls, parts: Sequence["RandomCrops"]) -> "RandomCrops":
        """Return the crops of all parts, one part after another."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def augment(batch: Tensor, crops: RandomCrops, *, pad: int = PAD, flip: bool = True) -> Tensor:
    """Return the batch padded with zeros, cropped to its old size and flipped.

    Called on uint8 images before `normalise`, so that the border is black.

    Args:
        batch: [b, c, h, w], any dtype.
        crops: one crop for each of the b images.
        pad: pixels added on each side.
        flip: False ignores `crops.mirrored`.
    """
    height, width = batch.shape[2:]
    padded = pad_borders(batch, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [b, c, top, left, h, w]
    image = torch.arange(len(batch), device=batch.device)
    top, left = (torch.from_numpy(start).to(batch.device) for start in (crops.tops, crops.lefts))
    cropped = windows[image, :, top, left]
    if not flip:
        return cropped
    mirrored = torch.from_numpy(crops.mirrored).to(batch.device)[:, None, None, None]
    return torch.where(mirrored, cropped.flip(-1), cropped)
