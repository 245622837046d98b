"""Shuffled batches of a client's training samples, on the device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.data.dataset import Dataset
from common.data.image_batches import RandomCrops, augment, load_images
from common.rng import stream

CHUNK_BYTES = 16 << 20  # of images, copied to the device at once


def batch_slices(count: int, size: int, *, drop_last: bool, no_single: bool) -> list[slice]:
    """Return the slices of the batches in an epoch's order of `count` samples.

    Args:
        count: number of samples.
        size: samples per batch. The last batch may have fewer.
        drop_last: leave out an incomplete last batch.
        no_single: join a last batch of one sample to the batch before it, because batch
            normalisation cannot train on a single value per channel.
    """
    if drop_last:
        count -= count % size
    edges = [*range(0, count, size), count]
    if no_single and len(edges) > 2 and edges[-1] - edges[-2] == 1:
        del edges[-2]
    return [slice(*edge) for edge in pairwise(edges)]


@dataclass(frozen=True)
class TrainingBatches:
    """The epochs of one local training. All draws depend on seed and path alone.

    Attributes:
        data: the data set.
        indices: the client's training samples, int64 [n].
        slices: the batches of an epoch, see `batch_slices`.
        device: where the tensors are needed.
        augment: whether images are cropped and flipped at random.
        seed: the run's seed.
        path: address of the training, normally (round, client).
    """

    data: Dataset
    indices: NDArray[np.int64]
    slices: Sequence[slice]
    device: torch.device
    augment: bool
    seed: int
    path: tuple[int | str, ...]

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images, uint8 [b, c, h, w], and labels, int64 [b], of each batch.

        Several batches are copied to the device at once, so that the steps do not wait.
        """
        order, step = self._order(number), number * len(self.slices)
        for chunk in self._chunks():
            start, stop = chunk[0].start, chunk[-1].stop
            images, labels = load_images(self.data, order[start:stop], self.device)
            if self.augment:
                crops = [
                    RandomCrops.draw(
                        batch.stop - batch.start, stream(self.seed, "augment", *self.path, k)
                    )
                    for k, batch in enumerate(chunk, start=step)
                ]
                images = augment(images, RandomCrops.concatenate(crops), flip=self.data.flip)
            for batch in chunk:
                part = slice(batch.start - start, batch.stop - start)
                yield images[part], labels[part]
            step += len(chunk)

    def examples(self, epochs: int) -> int:
        """Return how many samples are used at least once in `epochs` epochs."""
        per_epoch = self.slices[-1].stop if self.slices else 0
        if per_epoch in (0, len(self.indices)):
            return per_epoch
        used = [self._order(number)[:per_epoch] for number in range(epochs)]
        return len(np.unique(np.concatenate(used)))

    def _order(self, number: int) -> NDArray[np.int64]:
        rng = stream(self.seed, "batches", *self.path, number)
        return self.indices[rng.permutation(len(self.indices))]

    def _chunks(self) -> Iterator[list[slice]]:
        limit = CHUNK_BYTES // self.data.images[:1].nbytes
        chunk: list[slice] = []
        for batch in self.slices:
            if chunk and batch.stop - chunk[0].start > limit:
                yield chunk
                chunk = []
            chunk.append(batch)
        if chunk:
            yield chunk
