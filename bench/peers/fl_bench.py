"""FL-bench's FedAvg server, in its serial or its parallel mode: WORK LOG MODE WORKERS."""

import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from data.utils.datasets import DATASETS, BaseDataset
from omegaconf import DictConfig
from src.server import fedavg
from src.utils.functional import parse_args
from src.utils.models import MODELS, DecoupledModel
from torch import nn

from bench.reference.log import Log
from bench.reference.net import Net
from bench.reference.pictures import deal, read
from bench.reference.score import accuracy
from bench.work import Work

NAME = "cifar10"  # its mean and standard deviation are known to FL-bench


class Decoupled(DecoupledModel):
    """The model, as FL-bench divides it."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        layers = Net().layers
        self.base, self.classifier = nn.Sequential(*layers[:-1]), layers[-1]


class Server(fedavg.FedAvgServer):
    """Writes the log."""

    log: Log

    def train(self) -> None:
        """Begin the first round."""
        self.log.begin()
        super().train()

    def train_one_round(self) -> None:
        """End a round."""
        super().train_one_round()
        self.log.end_round()


def prepare(work: Work, home: Path) -> None:
    """Put the clients' parts where FL-bench looks for them, outside of its checkout."""
    train, test = deal(work)
    clients = list(range(work.clients))
    parts = [
        {"train": mine, "val": [], "test": tests}
        for mine, tests in zip(train.tolist(), test.tolist(), strict=True)
    ]
    separation = {"train": clients, "val": clients, "test": clients, "total": work.clients}
    folder = home / "data" / NAME
    folder.mkdir(parents=True)
    (folder / "args.json").write_text('{"split": "sample"}')
    (folder / "partition.pkl").write_bytes(
        pickle.dumps({"separation": separation, "data_indices": parts})
    )


def main() -> None:
    """Do the work."""
    said, log, mode, workers = sys.argv[1:]
    work, home = Work(**json.loads(said)), Path.cwd()
    prepare(work, home)
    pixels, labels = read(work)
    pictures = torch.from_numpy(pixels).float(), torch.from_numpy(labels)
    fedavg.FLBENCH_ROOT = home
    fedavg.HydraConfig.get = lambda: SimpleNamespace(runtime=SimpleNamespace(output_dir=home))
    DATASETS[NAME] = lambda root, args, **transforms: BaseDataset(
        *pictures, list(range(10)), **transforms
    )
    MODELS["net"] = Decoupled
    never = {"interval": -1, "train": False, "val": False, "test": False}
    given = {
        "dataset": {"name": NAME},
        "model": {"name": "net"},
        "optimizer": {"name": "sgd", "lr": work.lr},
        "mode": mode,
        "parallel": {  # it wants a GPU to be named, and with use_cuda false no worker uses it
            "ray_cluster_addr": None, "num_gpus": 1, "num_cpus": int(workers),
            "num_workers": int(workers),
        },
        "common": {
            "seed": work.seed, "join_ratio": work.cohort / work.clients,
            "global_epoch": work.rounds, "local_epoch": 1, "batch_size": work.batch,
            "client_side_evaluation": False, "test": {"client": never, "server": never},
            "use_cuda": False, "save_log": False, "save_learning_curve_plot": False,
            "save_metrics": False,
        },
    }  # fmt: skip
    server = Server(parse_args(DictConfig(given), "fedavg", None))
    server.log = Log(log)
    server.run_experiment()
    test = torch.from_numpy(deal(work)[1])
    images = torch.stack([server.dataset[int(place)][0] for place in test.flatten()])
    places = torch.arange(len(images)).view_as(test)
    server.log.accuracy(accuracy(server.model, images, pictures[1][test.flatten()], places))


if __name__ == "__main__":
    main()
