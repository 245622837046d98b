"""FedAvg in flgo (easyFL): WORK LOG."""

import sys
from types import SimpleNamespace

import flgo
import torch
from flgo.algorithm import fedavg
from flgo.benchmark.partition import BasicPartitioner

from bench.peers.flgo_task.core import WORK
from bench.reference.log import Log
from bench.reference.net import Net
from bench.reference.pictures import deal, normalised
from bench.reference.score import accuracy

TASK = "task"
LOG = Log(sys.argv[2])


class Dealt(BasicPartitioner):
    """Every client's training pictures."""

    def __call__(self, data: object) -> list[list[int]]:
        """Return their places."""
        parts: list[list[int]] = deal(WORK)[0].tolist()
        return parts


class Server(fedavg.Server):
    """Writes the log."""

    def run(self) -> None:
        """Begin the first round."""
        LOG.begin()
        super().run()

    def iterate(self) -> bool:
        """End a round."""
        updated: bool = super().iterate()
        LOG.end_round()
        return updated


def main() -> None:
    """Do the work."""
    benchmark = {"name": "bench.peers.flgo_task"}
    flgo.gen_task({"benchmark": benchmark, "partitioner": Dealt()}, TASK)
    algorithm = SimpleNamespace(__name__="fedavg", Server=Server, Client=fedavg.Client)
    option = {
        "num_rounds": WORK.rounds, "proportion": WORK.cohort / WORK.clients, "num_epochs": 1,
        "batch_size": WORK.batch, "learning_rate": WORK.lr, "learning_rate_decay": 1.0,
        "sample": "uniform", "aggregate": "uniform", "train_holdout": 0.0, "test_holdout": 0.0,
        "eval_interval": -1, "seed": WORK.seed,
    }  # fmt: skip
    runner = flgo.init(TASK, algorithm, option, model=flgo.convert_model(Net, "net"))
    runner.run()
    images, labels = map(torch.from_numpy, normalised(WORK))
    LOG.accuracy(accuracy(runner.model, images, labels, torch.from_numpy(deal(WORK)[1])))


if __name__ == "__main__":
    main()
