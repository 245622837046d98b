"""FedAvg in plain PyTorch: python -m bench.reference.plain WORK LOG PROCESSES THREADS.

The pictures lie in memory as one tensor; clients train one after another, or in a pool of
processes.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, multiprocessing
from torch.nn.functional import cross_entropy

from bench.reference.log import Log
from bench.reference.net import Net
from bench.reference.pictures import deal, normalised
from bench.reference.score import accuracy
from bench.work import Work

State = dict[str, Tensor]
Task = tuple[State, int, int]  # the model, the client, a seed


class Trainer:
    """A model, and the pictures of all clients."""

    def __init__(self, work: Work) -> None:
        self.work, self.net = work, Net()
        self.images, self.labels = map(torch.from_numpy, normalised(work))
        self.train, self.test = map(torch.from_numpy, deal(work))

    def update(self, task: Task) -> State:
        """Train one client for an epoch from the state given."""
        state, client, seed = task
        self.net.load_state_dict(state)
        self.net.train()
        optimiser = torch.optim.SGD(self.net.parameters(), lr=self.work.lr)
        torch.manual_seed(seed)
        for positions in torch.split(torch.randperm(self.work.train), self.work.batch):
            chosen = self.train[client, positions]
            optimiser.zero_grad()
            loss = cross_entropy(self.net(self.images[chosen]), self.labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return {name: tensor.clone() for name, tensor in self.net.state_dict().items()}

    def accuracy(self, state: State) -> float:
        """Return the share of all clients' test pictures that are told right."""
        self.net.load_state_dict(state)
        return accuracy(self.net, self.images, self.labels, self.test)


def average(states: Sequence[State]) -> State:
    """Return the mean of models whose clients have as many pictures each."""
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def run(trainer: Trainer, update_all: Callable[[Iterable[Task]], list[State]], log: Log) -> None:
    """Train all rounds and evaluate; `update_all` trains the clients of one."""
    work, rng = trainer.work, np.random.default_rng(trainer.work.seed)
    state: State = {name: tensor.clone() for name, tensor in trainer.net.state_dict().items()}
    log.begin()
    for number in range(work.rounds):
        cohort = rng.choice(work.clients, work.cohort, replace=False).tolist()
        tasks = [(state, client, work.clients * number + client) for client in cohort]
        state = average(update_all(tasks))
        log.end_round()
    log.accuracy(trainer.accuracy(state))


_here: Trainer  # of this process; those of a pool inherit it


def _update_here(task: Task) -> State:
    return _here.update(task)


def main() -> None:
    """Do the work with this many processes and threads."""
    global _here
    said, log, processes, threads = sys.argv[1:]
    work = Work(**json.loads(said))
    torch.set_num_threads(int(threads))
    torch.manual_seed(work.seed)
    _here = Trainer(work)
    if processes == "1":
        run(_here, lambda tasks: list(map(_update_here, tasks)), Log(log))
        return
    with multiprocessing.get_context("fork").Pool(int(processes)) as pool:
        run(_here, partial(pool.map, _update_here, chunksize=1), Log(log))


if __name__ == "__main__":
    main()
