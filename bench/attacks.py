"""Accuracy of methods when some of ten clients are hostile.

    python -m bench.attacks [--rounds 30] [--seeds 1 2 3] [--methods NAME ...] [--json FILE]

Ten clients hold scikit-learn's digits, and all of them train in every round. The first `k` clients
are hostile. They train honestly and change what they send:

- scaling: the displacement times 50, below the limit `server.max-update-ratio` of 100;
- sign flip: the displacement times -5;
- label flip: the update of a training with the labels 9 - y. This equals a training on the true
  labels with the output units in reverse order.

The table shows the mean accuracy of the honest clients. A run that fails counts as 0.
"""

import argparse
import copy
import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MessageType
from flwr.clientapp import ClientApp
from rich.table import Table

from bench.command import add_json, at_least, carry_out, keep, print_tables
from client_app.app import app
from common.config import parse
from common.errors import FedError
from common.layout import Layout
from common.methods import METHODS
from common.models import FlatModel, build
from common.runs.records import read_records
from common.types import Vector
from common.wire.arrays import WEIGHTS
from common.wire.content import ARRAYS
from deploy.engines.inline import InlineGrid
from server_app.app import run

CLIENTS = 10
HOSTILE = range(6)
SHAPE, CLASSES = (1, 8, 8), 10
COMPARED = ("fedavg", "fedpcd", "median", "trimmedmean", "krum")
SETTINGS: Mapping[str, Any] = {
    "clients": CLIENTS,
    "participation": 1.0,
    "data.partition": "dirichlet-client",
    "data.alpha": 1.0,
    "eval-every": 0,
    "train.device": "cpu",
    "server.checkpoint-every": 0,
    "trimmedmean.beta": 0.3,
    "krum.hostile": 0.3,
}
LEGEND = """columns: mean accuracy in % of the honest clients with 0 to 5 hostile clients of 10
tolerated: the largest number of hostile clients with at least half of the accuracy without any"""

Change: TypeAlias = Callable[[Vector, Layout], Vector]


def reversed_outputs(weights: Vector, layout: Layout) -> Vector:
    """Return the weights [d] with the output units, the last two tensors, in reverse order."""
    changed = weights.copy()
    for tensor in layout.tensors[-2:]:
        part = changed[layout.spans[tensor.name]].reshape(tensor.shape)
        part[:] = part[::-1].copy()
    return changed


class HostileClients(ClientApp):
    """FedKeel's ClientApp, whose first partitions are hostile in training.

    Args:
        hostile: number of hostile clients.
        factor: the displacement that they send is multiplied by it.
        flips_labels: whether they train on the labels 9 - y.
    """

    def __init__(self, hostile: int, factor: float, flips_labels: bool, layout: Layout) -> None:
        super().__init__()
        self.hostile, self.factor, self.flips_labels = hostile, factor, flips_labels
        self.layout = layout

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        is_hostile = int(str(context.node_config["partition-id"])) < self.hostile
        if not is_hostile or message.metadata.message_type != MessageType.TRAIN:
            return app(message, context)
        received = weights_in(message)
        if self.flips_labels:
            message = with_weights(message, reversed_outputs(received, self.layout))
        reply = app(message, context)
        if reply.has_error():
            return reply
        reached = weights_in(reply)
        if self.flips_labels:
            reached = reversed_outputs(reached, self.layout)
        sent = received + self.factor * (reached - received)
        return with_weights(reply, sent.astype(np.float32))


def weights_in(message: Message) -> Vector:
    """Return the flat weights [d] of a message."""
    weights: Vector = message.content.array_records[ARRAYS][WEIGHTS].numpy()
    return weights


def with_weights(message: Message, weights: Vector) -> Message:
    """Return a copy of the message with other weights [d]."""
    changed = copy.deepcopy(message)
    arrays = dict(changed.content.array_records[ARRAYS])
    changed.content[ARRAYS] = ArrayRecord({**arrays, WEIGHTS: Array(weights)})
    return changed


ATTACKS: Mapping[str, tuple[float, bool]] = {  # factor, whether labels are flipped
    "scaling x50": (50.0, False),
    "sign flip x-5": (-5.0, False),
    "label flip": (1.0, True),
}


def accuracy(method: str, attack: str, hostile: int, seed: int, rounds: int, home: Path) -> float:
    """Return the mean accuracy of the honest clients after the last round, 0 if the run failed."""
    name = f"{method}-{attack}-{hostile}-{seed}".replace(" ", "-")
    own = {"method": method, "name": name, "out": str(home), "seed": seed, "rounds": rounds}
    config = parse({**SETTINGS, **own})
    layout = FlatModel(build(config.model, SHAPE, CLASSES, seed=seed)).layout
    factor, flips_labels = ATTACKS[attack]
    clients = HostileClients(hostile, factor, flips_labels, layout)
    grid = InlineGrid(clients, CLIENTS, config.to_flat(), workers=1)
    try:
        run(grid, config)
    except FedError:
        return 0.0
    finally:
        grid.close()
    evaluation = read_records(home / name)[-1].evaluation
    assert evaluation is not None, "the last round is evaluated"
    honest = [score for client, score in evaluation.clients.items() if int(client) >= hostile]
    return mean(score.correct / score.examples for score in honest)


def measure(given: argparse.Namespace, results: dict[str, list[float]], home: Path) -> None:
    """Fill `results`: the mean accuracy over the seeds by "method, attack", for each number."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for method in given.methods:
        for attack in ATTACKS:
            row = results.setdefault(f"{method}, {attack}", [])
            for hostile in HOSTILE:
                runs = [
                    accuracy(method, attack, hostile, seed, given.rounds, home)
                    for seed in given.seeds
                ]
                row.append(mean(runs))


def tolerated(row: list[float]) -> int:
    """Return the largest number of hostile clients up to which the accuracy is at least half."""
    number = 0
    while number + 1 < len(row) and row[number + 1] >= row[0] / 2:
        number += 1
    return number


def show(given: argparse.Namespace, results: dict[str, list[float]], why: str | None) -> None:
    """Print the table and write the file of --json."""
    table = Table("method", "attack", *map(str, HOSTILE), "tolerated")
    for name, row in results.items():
        cells = [f"{100 * value:.1f}" for value in row]
        cells += [""] * (len(HOSTILE) - len(row))
        table.add_row(*name.split(", "), *cells, str(tolerated(row)))
    print_tables([table], LEGEND)
    keep(given.json, why, {"rounds": given.rounds, "seeds": given.seeds}, accuracy=results)


def main() -> None:
    """Run all attacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=30)
    parser.add_argument("--seeds", type=at_least(0), nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=list(COMPARED))
    add_json(parser)
    given = parser.parse_args()
    results: dict[str, list[float]] = {}
    carry_out(partial(measure, given, results), partial(show, given, results))


if __name__ == "__main__":
    main()
