"""The work of `bench.round`. Peers import this in their own Python, so it imports nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """FedAvg on pictures in CIFAR-10's binary layout, dealt at random; each program gets this.

    Attributes:
        root: folder that holds `cifar-10-batches-bin`; its 60,000 pictures are one pool.
        rounds: of training; after the last one the model is evaluated on all test pictures.
        seed: of the deal, the cohorts, the batches and the first weights.
        clients: among whom the pool is dealt, as many to each.
        cohort: clients that train in a round, one epoch each.
        train: pictures of a client to train on.
        test: the rest of its pictures.
        batch: pictures of a step.
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
