"""DataFacts: which data a run uses, so that a change of them is noticed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import Dataset
from common.data.splits import Split

DIGEST_BYTES = 8


@dataclass(frozen=True)
class DataFacts:
    """The data set of a run and its repeated images. Images are compared by their pixels.

    Attributes:
        name: name of the data set.
        digest: digest of all images, labels and classes in their order.
        samples: number of samples.
        source_train: number of samples in the source's own train part.
        skipped: number of files that could not be used.
        left_out: number of files that were not used, by kind.
        repeated: number of images that occurred before.
        two_classes: number of different images under two classes or more.
        two_clients: number of different images with two clients or more.
        train_and_test: number of different images in a train part and in a test part.
    """

    name: str
    digest: str
    samples: int
    source_train: int
    skipped: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    two_classes: int = 0
    two_clients: int = 0
    train_and_test: int = 0

    @property
    def sentences(self) -> list[str]:
        """The facts as lines for the log."""
        train = f"{self.source_train} in the source's train part"
        lines = [f"data: {self.name}, {self.samples} samples ({train}), digest {self.digest}"]
        kinds = {"files could not be used": self.skipped, **self.left_out}
        if unused := [f"{count} {kind}" for kind, count in kinds.items() if count]:
            lines.append(f"not used: {', '.join(unused)}")
        if self.repeated:
            lines.append(
                f"{self.repeated} images are repetitions; different images that occur under two "
                f"classes: {self.two_classes}, with two clients: {self.two_clients}, in a train "
                f"and a test part: {self.train_and_test}"
            )
        return lines


def facts_of(data: Dataset, splits: Sequence[Split]) -> DataFacts:
    """Return the facts of a data set and its partition.

    Args:
        data: the data set.
        splits: the samples of each client.
    """
    images = image_digests(data)
    head = f"{data.shape} {data.train_size} {data.classes}".encode()
    digest = blake2b(head, digest_size=DIGEST_BYTES)
    digest.update(images.tobytes())
    digest.update(data.labels.tobytes())
    owner = np.full(len(data), -1)
    part = np.full(len(data), -1)
    for client, split in enumerate(splits):
        owner[split.train], owner[split.test] = client, client
        part[split.train], part[split.test] = 0, 1
    return DataFacts(
        name=data.name,
        digest=digest.hexdigest(),
        samples=len(data),
        source_train=data.train_size,
        skipped=len(data.skipped),
        left_out=dict(data.left_out),
        repeated=len(images) - len(np.unique(images)),
        two_classes=_with_two(images, data.labels),
        two_clients=_with_two(images, owner),
        train_and_test=_with_two(images, part),
    )


def image_digests(data: Dataset) -> NDArray[np.uint64]:
    """Return a digest of the pixels of each image [n]."""
    digests = (blake2b(image.tobytes(), digest_size=8).digest() for image in data.images)
    return np.frombuffer(b"".join(digests), np.uint64)


def _with_two(images: NDArray[np.uint64], values: NDArray[np.int64]) -> int:
    """Return the number of different images with two values or more; values below 0 are none."""
    known = values >= 0
    pairs = np.unique(np.stack([images[known], values[known].astype(np.uint64)]), axis=1)
    _, counts = np.unique(pairs[0], return_counts=True)
    return int((counts > 1).sum())
