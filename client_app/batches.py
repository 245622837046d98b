"""What the steps of a training see: shuffled batches of the client's samples, on the device."""

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

PIECE = 16 << 20  # bytes of pictures that are brought to the device at a time


def batch_slices(count: int, size: int, *, drop_last: bool, no_single: bool) -> list[slice]:
    """Return where in an epoch's order of `count` samples its batches lie.

    Args:
        count: number of samples.
        size: samples of a batch; the last one may have fewer.
        drop_last: leave out an incomplete last batch.
        no_single: join a last batch of one sample to the one before it, since batch
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
    """The epochs of one training; what is drawn depends on seed and path alone.

    Attributes:
        data: the data set.
        indices: the client's training samples.
        spans: the batches of an epoch, see `batches`.
        device: where they are wanted.
        augment: whether pictures are cropped and mirrored at random.
        seed: the run's seed.
        path: address of the training, normally (round, client).
    """

    data: Dataset
    indices: NDArray[np.int64]
    spans: Sequence[slice]
    device: torch.device
    augment: bool
    seed: int
    path: tuple[int | str, ...]

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pictures, uint8 [b, c, h, w], and labels, int64 [b], of each batch.

        As many batches as make a PIECE are brought to the device at once, so that the steps on
        them wait for no transfer.
        """
        order, step = self._order(number), number * len(self.spans)
        for piece in self._pieces():
            start, stop = piece[0].start, piece[-1].stop
            pixels, labels = load_images(self.data, order[start:stop], self.device)
            if self.augment:
                draws = [
                    RandomCrops.draw(
                        span.stop - span.start, stream(self.seed, "augment", *self.path, k)
                    )
                    for k, span in enumerate(piece, start=step)
                ]
                pixels = augment(pixels, RandomCrops.concatenate(draws), flip=self.data.flip)
            for span in piece:
                here = slice(span.start - start, span.stop - start)
                yield pixels[here], labels[here]
            step += len(piece)

    def examples(self, epochs: int) -> int:
        """Return how many samples are seen at least once in so many epochs."""
        reached = self.spans[-1].stop if self.spans else 0
        if reached in (0, len(self.indices)):
            return reached
        seen = [self._order(number)[:reached] for number in range(epochs)]
        return len(np.unique(np.concatenate(seen)))

    def _order(self, number: int) -> NDArray[np.int64]:
        rng = stream(self.seed, "batches", *self.path, number)
        return self.indices[rng.permutation(len(self.indices))]

    def _pieces(self) -> Iterator[list[slice]]:
        most = PIECE // self.data.images[:1].nbytes
        piece: list[slice] = []
        for span in self.spans:
            if piece and span.stop - piece[0].start > most:
                yield piece
                piece = []
            piece.append(span)
        if piece:
            yield piece
