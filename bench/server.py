"""The cost of the server's aggregation, compared with Flower's and with the machine's limit.

    python -m bench.server [--parameters 11200000] [--replies 10] [--rows 69] [--repeats 5]

Every value is a whole `aggregate_train`: read and check the replies, run the method, pack the new
model. FedAvg is compared with Flower's FedAvg on the same replies. FedPCD with `--rows`
displacements in its history is compared with its lower limit, with the same number of cores:

- one matrix product of its size at the best rate of numpy or torch on this machine,
- one read of the history,
- filling a matrix from the replies.

The references run with their default memory settings, and with freed memory kept as FedKeel does.
Each table is made with one core and with all cores.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from rich.table import Table

from bench.command import add_json, at_least, carry_out, keep, print_tables
from common.geometry import differences
from common.layout import Layout, Tensor
from common.malloc import keep_freed_memory
from common.methods import FedAvg, FedPCD, Method, history
from common.methods.history import History
from common.parallel import one_blas_thread, usable_cores
from common.types import ClientUpdate, Cohort, Vector
from common.wire.arrays import WEIGHTS, FlatCodec, read_array
from common.wire.content import ARRAYS
from common.wire.messages import TrainReply
from deploy.engines.inline import FIRST_NODE, InlineGrid
from server_app.round.ready_clients import ReadyClients
from server_app.state.server_state import ServerState
from server_app.strategy import MethodStrategy

ROUND = 100
COMMON = 0.06  # weight of the shared direction, 0, 1 or 2 times
COLUMNS = (1024, 4096, 16384)  # block sizes tried for the product of the lower limit
OPTIONS = (
    ("replies", 10, "of the round"),
    ("rows", 69, "remembered"),
    ("repeats", 5, "of each figure, of which the median counts"),
)


def displacements(count: int, size: int, *path: int) -> Iterator[Vector]:
    """Yield random displacements [d] that share a direction, like those of clients."""
    shared = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    for number in range(count):
        shared_part = np.float32(COMMON * (number % 3))
        own = np.random.default_rng([*path, number, 1]).standard_normal(size, dtype=np.float32)
        own += shared_part * shared
        own *= np.float32(1e-3)
        yield own


class Workload:
    """A model, the replies of a round, and strategies that wait for them."""

    def __init__(self, size: int, replies: int) -> None:
        InlineGrid(ClientApp(), 0, {}, 1).close()  # messages need a registered run
        self.layout = Layout((Tensor("weight", (size,)),))
        self.codec = FlatCodec(self.layout)
        self.weights = np.random.default_rng(7).standard_normal(size, dtype=np.float32)
        self.arrays = self.codec.pack(self.weights, {})
        self.clients = [str(number) for number in range(replies)]
        self.replies = [
            self._reply(client, self.weights - delta)
            for client, delta in zip(self.clients, displacements(replies, size, 0), strict=True)
        ]

    def _reply(self, client: str, weights: Vector) -> Message:
        reply = TrainReply(client, ROUND, weights, {}, 500 + int(client), 10, 1.0)
        order = Message(RecordDict(), FIRST_NODE + int(client), MessageType.TRAIN)
        order.metadata.__dict__["_message_id"] = client
        return Message(reply.record(self.codec), reply_to=order)

    def history(self, rows: int) -> History:
        """Return FedPCD's history of `rows` other clients, ten per round."""
        state, method = History(), FedPCD()
        drawn = enumerate(displacements(rows, self.layout.size, 1))
        updates = [ClientUpdate(str(1000 + k), 500, 10, 1.0, delta) for k, delta in drawn]
        for number, start in enumerate(range(0, rows, 10), start=ROUND - -(-rows // 10)):
            group = Cohort(number, 1.0, 100, tuple(updates[start : start + 10]))
            state = method.aggregate(group, state, self.layout).state
        return state

    def aggregate(self, method: Method[Any], state: Any) -> MethodStrategy:
        """Return a strategy that waits for the replies to `aggregate_train`."""
        roster = ReadyClients.of({c: FIRST_NODE + int(c) for c in self.clients})
        strategy = MethodStrategy(method, codec=self.codec, registry=lambda _: roster)
        strategy.state = ServerState(ROUND - 1, self.weights, {}, state)
        strategy.model.packed = self.arrays
        strategy.configure_train(ROUND, self.arrays, ConfigRecord(), None)
        return strategy

    def cohort(self) -> Cohort:
        """Return the cohort of the replies."""
        sent = [reply.content[ARRAYS] for reply in self.replies]
        ends = [self.codec.unpack(record)[0] for record in sent]
        deltas = differences(self.weights, ends)[0]
        updates = (
            ClientUpdate(client, 500 + int(client), 10, 1.0, delta)
            for client, delta in zip(self.clients, deltas, strict=True)
        )
        return Cohort(ROUND, 1.0, 100, tuple(updates))

    def filled(self, matrix: Any, place: int) -> None:
        """Copy a reply's weights into its row of a matrix that is there."""
        array = self.replies[place].content[ARRAYS][WEIGHTS]
        matrix[place][:] = read_array(array, Tensor(WEIGHTS, (self.layout.size,)))


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a call, after one that does not count."""
    taken = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return median(taken[1:])


def whole_round(load: Workload, method: Method[Any], state: Any, repeats: int) -> float:
    """Return the median seconds of our `aggregate_train`."""
    taken = []
    for _ in range(repeats + 1):
        strategy = load.aggregate(method, state)
        begin = time.perf_counter()
        arrays, _ = strategy.aggregate_train(ROUND, load.replies)
        taken.append(time.perf_counter() - begin)
        assert arrays is not None, strategy.record
    return median(taken[1:])


def on_all_cores(work: Callable[[int], object], shares: Sequence[int]) -> None:
    """Let each core do one share at a time."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(work, shares))


def product_rate(new: int, rows: int) -> float:
    """Return the best multiply-adds a second of [new, n] @ [n, rows], of numpy and torch.

    Every core multiplies blocks of its own at the same time.
    """
    rates, cores = [], range(usable_cores())
    for columns in COLUMNS:
        block = np.random.default_rng(3).standard_normal((rows, columns), dtype=np.float32)
        tensor, few = torch.from_numpy(block), block[:new].copy()
        for product in (
            lambda b=block, f=few: f @ b.T,
            lambda b=block, f=few: b @ f.T,
            lambda b=tensor, n=new: b[:n] @ b.T,
            lambda b=tensor, n=new: torch.nn.functional.linear(b[:n], b),
        ):
            times = max(1, 2**20 // columns)
            repeated = partial(repeat, product, times)
            taken = seconds(partial(on_all_cores, repeated, cores), 3)
            rates.append(len(cores) * times * new * rows * columns / taken)
    return max(rates)


def repeat(work: Callable[[], object], times: int, _: int) -> None:
    """Do it so many times."""
    for _ in range(times):
        work()


def best_rate() -> float:
    """Return the multiply-adds a second of a large product, one on every core."""
    square = np.random.default_rng(3).standard_normal((2000, 2000), dtype=np.float32)
    cores = range(usable_cores())
    taken = seconds(partial(on_all_cores, lambda _: square @ square, cores), 3)
    return len(cores) * 2000**3 / taken


def measured(given: argparse.Namespace) -> Mapping[str, float]:
    """Return every figure of one child process: seconds, but for counts and errors."""
    load = Workload(given.parameters, given.replies)
    flower = FlowerFedAvg()
    found = {}
    found["Flower"] = seconds(lambda: flower.aggregate_train(ROUND, load.replies), given.repeats)
    keep_freed_memory()
    found["Flower, memory kept"] = seconds(
        lambda: flower.aggregate_train(ROUND, load.replies), given.repeats
    )
    found["FedAvg"] = whole_round(load, FedAvg(), None, given.repeats)

    state, method = load.history(given.rows), FedPCD()
    new, all_ = given.replies, given.replies + given.rows
    with one_blas_thread():
        work = new * all_ * given.parameters
        found["product"] = work / product_rate(new, all_)
        found["product at the rate of large ones"] = work / best_rate()
        vectors = [entry.vector for entry in state.seen.entries.values()]
        found["read"] = seconds(
            partial(on_all_cores, lambda k: np.dot(vectors[k], vectors[k]), range(given.rows)),
            given.repeats,
        )
    matrix = [np.ones(given.parameters, np.float32) for _ in load.replies]
    found["fill"] = seconds(
        partial(on_all_cores, partial(load.filled, matrix), range(new)), given.repeats
    )
    found["FedPCD"] = whole_round(load, method, state, given.repeats)

    made, counts = history.inner_products, []
    history.inner_products = lambda new, all_, **more: (
        counts.append(len(new) * len(all_) * (new[0].size == given.parameters))  # else a sample
        or made(new, all_, **more)
    )
    cohort = load.cohort()
    step = method.aggregate(cohort, state, load.layout)
    history.inner_products = made
    found["products made"] = sum(counts)
    found["active"] = step.report["active"]
    history.LONG = given.parameters + 1  # from here on everything is multiplied in float64
    exact = method.aggregate(cohort, state, load.layout).direction
    found["error"] = float(np.linalg.norm(step.direction - exact) / np.linalg.norm(exact))
    return found


def child(given: argparse.Namespace, cores: int) -> Mapping[str, float]:
    """Measure in a process of its own on so many cores."""
    mine = sorted(os.sched_getaffinity(0))[:cores]
    command = [sys.executable, "-m", "bench.server", "--child", *sys.argv[1:]]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, mine),
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def floors(found: Mapping[str, float]) -> dict[str, float]:
    """Return FedPCD's floor, with its product at its own best rate and at that of large ones."""
    rest = found["read"] + found["fill"]
    return {
        "own": found["product"] + rest,
        "large": found["product at the rate of large ones"] + rest,
    }


Found = MutableMapping[int, Mapping[str, float]]  # by cores


def measure(given: argparse.Namespace, found: Found, _: Path) -> None:
    """Measure on one core and on all; `found` gets the figures of each."""
    for cores in sorted({1, usable_cores()}):
        print(f"on {cores} core{'s' * (cores > 1)}", file=sys.stderr)  # noqa: T201
        found[cores] = child(given, cores)


ROWS: Mapping[str, Callable[[Mapping[str, float]], str]] = {
    "Flower's FedAvg": lambda f: f"{1e3 * f['Flower']:.0f}",
    "  with freed memory kept": lambda f: f"{1e3 * f['Flower, memory kept']:.0f}",
    "FedAvg": lambda f: f"{1e3 * f['FedAvg']:.0f}",
    "  of Flower's": lambda f: f"{f['FedAvg'] / f['Flower']:.2f}",
    "  of Flower's with memory kept": lambda f: f"{f['FedAvg'] / f['Flower, memory kept']:.2f}",
    "FedPCD": lambda f: f"{1e3 * f['FedPCD']:.0f}",
    "floor: product": lambda f: f"{1e3 * f['product']:.0f}",
    "  at the rate of large ones": lambda f: f"{1e3 * f['product at the rate of large ones']:.0f}",
    "floor: read of the history": lambda f: f"{1e3 * f['read']:.0f}",
    "floor: filling a matrix": lambda f: f"{1e3 * f['fill']:.0f}",
    "FedPCD of its floor": lambda f: f"{f['FedPCD'] / floors(f)['own']:.2f}",
    "  of that at the rate of large ones": lambda f: f"{f['FedPCD'] / floors(f)['large']:.2f}",
    "inner products made": lambda f: f"{f['products made']:.0f}",
    "active constraints": lambda f: f"{f['active']:.0f}",
    "error against float64": lambda f: f"{f['error']:.0e}",
}
LEGEND = """milliseconds, medians; "of" are ratios, of figures that are not rounded
error: the distance of FedPCD's step from that made in float64, of its length"""


def show(given: argparse.Namespace, found: Found, why: str | None) -> None:
    """Print the table and write the file."""
    table = Table(
        title=f"milliseconds of a round's aggregation, d = {given.parameters:,}, "
        f"{given.replies} replies, {given.rows} rows of history"
    )
    table.add_column("")
    for cores in found:
        table.add_column(f"{cores} core{'s' * (cores > 1)}", justify="right")
    for name, shown in ROWS.items() if found else ():
        table.add_row(name, *(shown(figures) for figures in found.values()))
    print_tables([table], LEGEND)
    keep(given.json, why, cores=dict(found))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--parameters", type=at_least(history.LONG), default=11_200_000,
        help=f"of the model (%(default)s); of {history.LONG} and more, shorter vectors take "
        "another way",
    )  # fmt: skip
    for name, default, of in OPTIONS:
        parser.add_argument(
            f"--{name}", type=at_least(1), default=default, help=f"{of} (%(default)s)"
        )
    add_json(parser)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        logging.getLogger("flwr").setLevel(logging.WARNING)
        torch.set_num_threads(1)
        sys.stdout.write(json.dumps(measured(given)))
        return
    found: Found = {}
    carry_out(partial(measure, given, found), partial(show, given, found))


if __name__ == "__main__":
    main()
