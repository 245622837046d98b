"""FedAvg in pfl-research's simulated backend: WORK LOG, alone or under torchrun."""

import json
import sys

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, distributed
from torch.nn.functional import cross_entropy

from bench.reference.log import Log
from bench.reference.net import Net
from bench.reference.pictures import deal, normalised
from bench.reference.score import accuracy
from bench.work import Work

LAST = 1 << 30  # pfl evaluates clients every so many rounds, and in the first


class PflNet(Net):
    """The model, with the two methods that pfl asks for."""

    def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:  # noqa: A002
        """Return the mean loss of a batch."""
        self.train(not eval)
        return cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, Weighted]:  # noqa: A002
        """Return the summed loss of a batch."""
        self.train(not eval)
        return {"loss": Weighted(cross_entropy(self(inputs), targets).item(), 1)}


class Note(TrainingProcessCallback):
    """Writes the log, in one process of several."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.first = get_default_framework_module().distributed.global_rank == 0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Begin the first round."""
        self.log.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """End a round."""
        if self.first:
            self.log.end_round()
        return False, Metrics()


def main() -> None:
    """Do the work."""
    work = Work(**json.loads(sys.argv[1]))
    np.random.seed(work.seed)  # noqa: NPY002 - pfl's own samplers use it
    torch.manual_seed(work.seed)
    images, labels = map(torch.from_numpy, normalised(work))
    train, test = map(torch.from_numpy, deal(work))
    users = {client: [images[mine], labels[mine]] for client, mine in enumerate(train)}
    net = PflNet()
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    sampler = get_user_sampler("minimize_reuse", list(users))
    note = Note(Log(sys.argv[2]))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=LAST,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=FederatedDataset.from_slices(users, sampler),
            val_data=None,
            postprocessors=[WeightByDatapoints()],
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[note],
    )
    if note.first:
        note.log.accuracy(accuracy(net, images, labels, test))
    if distributed.is_initialized():  # a process that leaves before the others makes them fail
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
