"""The workload of `bench.round`. Other simulators import it in their own Python environment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """FedAvg on images in CIFAR-10's binary layout, split at random. Each program gets this.

    Attributes:
        root: folder with `cifar-10-batches-bin`. Its 60,000 images are one pool.
        rounds: number of rounds. After the last one the model is evaluated on all test images.
        seed: seed of the partition, the sampled clients, the batches and the first weights.
        clients: number of clients. All have the same number of images.
        cohort: clients sampled per round. Each trains for one epoch.
        train: training images of a client.
        test: test images of a client.
        batch: images per step.
        lr: learning rate of plain SGD.
    """

    root: str
    rounds: int = 6
    seed: int = 1
    clients: int = 100
    cohort: int = 10
    train: int = 500
    test: int = 100
    batch: int = 50
    lr: float = 0.1
