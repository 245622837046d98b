"""Dataset: labelled images in memory or on disk, with their mean and standard deviation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError

PIXELS = 1 << 22  # pixels that are counted at a time


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels. The source's train and test parts are one pool.

    Attributes:
        name: the name in the config.
        images: uint8 [n, channels, height, width], possibly a read-only memory map.
        labels: int64 [n], each an index into `classes`.
        classes: the class names in the order of the labels.
        train_size: the first `train_size` samples are the source's own train part.
        mean: mean of the pixels scaled to 0..1, one number per channel.
        std: standard deviation of the pixels, one number per channel.
        flip: whether an image flipped left to right still shows its class.
        skipped: (file, reason) of every file that could not be used. It stays on this machine.
        left_out: number of files that were not used, by kind.
    """

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    train_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True
    skipped: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    left_out: Mapping[str, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise DataError(f"data set {self.name}: {'; '.join(problems)}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width


def _problems(data: Dataset) -> Iterator[str]:
    if data.images.dtype != np.uint8 or data.images.ndim != 4:
        yield f"images are {data.images.dtype} {data.images.shape}, expected uint8 [n, c, h, w]"
    elif not len(data.mean) == len(data.std) == data.images.shape[1]:
        yield f"{data.images.shape[1]} channels but mean {data.mean} and std {data.std}"
    if data.labels.shape != data.images.shape[:1]:
        yield f"{len(data.images)} images but {len(data.labels)} labels"
    if len(data.labels) and not 0 <= data.labels.min() <= data.labels.max() < len(data.classes):
        span = f"{data.labels.min()}..{data.labels.max()}"
        yield f"labels are {span}, expected 0..{len(data.classes) - 1}"
    if not 0 <= data.train_size <= len(data.labels):
        yield f"train part of {data.train_size} out of {len(data.labels)} samples"


def pixel_statistics(
    images: NDArray[np.uint8],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std per channel of uint8 images [n, c, h, w], as values of 0..1.

    Counted exactly in integers, so the same images give the same numbers on every machine. A
    constant channel gets std 1, which avoids a division by 0.
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    step = max(1, PIXELS // prod(images.shape[2:]))
    for start in range(0, len(images), step):
        chunk = images[start : start + step]
        for channel, row in enumerate(counts):
            row += np.bincount(chunk[:, channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    total = counts.sum(axis=1).clip(min=1)
    mean = counts @ levels / total
    variance = counts @ levels**2 / total - mean**2
    std = np.where(np.count_nonzero(counts, axis=1) > 1, np.sqrt(variance.clip(min=0)), 1.0)
    return tuple(map(float, mean)), tuple(map(float, std))
