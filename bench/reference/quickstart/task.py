"""Data, training and testing of the app."""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, Normalize, ToTensor

from bench.reference.net import Net
from bench.reference.pictures import MEAN, STD, deal, read
from bench.work import Work

TRANSFORMS = Compose([ToTensor(), Normalize(MEAN, STD)])
pool = cache(read)  # once a process


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Some of the pictures, transformed one at a time."""

    def __init__(self, work: Work, chosen: NDArray[np.int64]) -> None:
        images, self.labels = pool(work)
        self.images, self.chosen = images.transpose(0, 2, 3, 1), chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        at = self.chosen[index]
        return TRANSFORMS(self.images[at]), int(self.labels[at])


def load_data(work: Work, partition: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """Return the training batches of a partition."""
    train, _ = deal(work)
    return DataLoader(Pictures(work, train[partition]), batch_size=work.batch, shuffle=True)


def load_test(work: Work) -> DataLoader[tuple[torch.Tensor, int]]:
    """Return the test batches of all partitions."""
    _, test = deal(work)
    return DataLoader(Pictures(work, test.ravel()), batch_size=500)


def train(net: Net, batches: DataLoader[tuple[torch.Tensor, int]], lr: float) -> float:
    """Train for an epoch and return the mean loss."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running = 0.0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running / len(batches)


@torch.no_grad()
def test(net: Net, batches: DataLoader[tuple[torch.Tensor, int]]) -> float:
    """Return the accuracy."""
    net.eval()
    right = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in batches)
    return right / len(batches.dataset)  # type: ignore[arg-type]
