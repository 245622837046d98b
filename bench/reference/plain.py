"""FedAvg in plain PyTorch: python -m bench.reference.plain WORK LOG PROCESSES THREADS.

The pictures lie in memory as one tensor; clients train one after another, or in a pool of
processes.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, multiprocessing
from torch.nn.functional import cross_entropy

from bench.reference.net import Net
from bench.reference.pictures import MEAN, STD, deal, read
from bench.work import Work

State = dict[str, Tensor]
Task = tuple[State, int, int]  # the model, the client, a seed


class Trainer:
    """A model, and the pictures of all clients."""

    def __init__(self, work: Work) -> None:
        self.work, self.net = work, Net()
        pixels, labels = read(work)
        train, test = deal(work, len(labels))
        self.train, self.test = torch.from_numpy(train), torch.from_numpy(test)
        self.labels = torch.from_numpy(labels)
        self.images = torch.from_numpy(pixels).float().div_(255)
        self.images.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))

    def update(self, task: Task) -> State:
        """Train one client for an epoch from the state given."""
        state, client, seed = task
        self.net.load_state_dict(state)
        self.net.train()
        optimiser = torch.optim.SGD(self.net.parameters(), lr=self.work.lr)
        torch.manual_seed(seed)
        for positions in torch.randperm(self.work.train).split(self.work.batch):
            chosen = self.train[client, positions]
            optimiser.zero_grad()
            loss = cross_entropy(self.net(self.images[chosen]), self.labels[chosen])
            loss.backward()
            optimiser.step()
        return {name: tensor.clone() for name, tensor in self.net.state_dict().items()}

    @torch.inference_mode()
    def accuracy(self, state: State) -> float:
        """Return the share of all clients' test pictures that are told right."""
        self.net.load_state_dict(state)
        self.net.eval()
        parts = self.test.flatten().split(500)
        right = sum(
            int((self.net(self.images[p]).argmax(1) == self.labels[p]).sum()) for p in parts
        )
        return right / self.test.numel()


def average(states: Sequence[State]) -> State:
    """Return the mean of models whose clients have as many pictures each."""
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def run(trainer: Trainer, update_all: Callable[[Iterable[Task]], list[State]], log: Path) -> None:
    """Train all rounds and evaluate; `update_all` trains the clients of one."""
    work, rng = trainer.work, np.random.default_rng(trainer.work.seed)
    state: State = {name: tensor.clone() for name, tensor in trainer.net.state_dict().items()}
    with log.open("a", buffering=1) as file:
        for number in range(work.rounds):
            begin = time.perf_counter()
            cohort = rng.choice(work.clients, work.cohort, replace=False)
            tasks = [(state, int(c), work.clients * number + int(c)) for c in cohort]
            state = average(update_all(tasks))
            file.write(json.dumps({"seconds": time.perf_counter() - begin}) + "\n")
        file.write(json.dumps({"accuracy": trainer.accuracy(state)}) + "\n")


_here: Trainer


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
        run(_here, lambda tasks: list(map(_update_here, tasks)), Path(log))
        return
    with multiprocessing.get_context("fork").Pool(int(processes)) as pool:  # they share the data
        run(_here, partial(pool.map, _update_here, chunksize=1), Path(log))


if __name__ == "__main__":
    main()
