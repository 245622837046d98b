"""Memory: the server's peak and its estimated bound, growth over rounds, and a client's peak.

    python -m bench.memory [--quick] [--only PART ...] [--json FILE]

Each value is measured in its own process, minus the memory before the measurement. The server
runs FedPCD with clients that return random updates. The growth is measured on whole runs in the
inline engine. The client is FedKeel's ClientApp with one order after another.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from rich.table import Table
from torch.nn.functional import cross_entropy

from bench.alone import alone, peak, rss, settled
from bench.command import add_json, carry_out, keep, print_tables
from bench.tiny import inline, instead_of_digits, pictures, tiny_run
from bench.trial import BenchError
from client_app.app import app
from common.config import parse
from common.layout import Layout
from common.layout import Tensor as Shape
from common.malloc import keep_freed_memory
from common.methods.fedpcd import FedPCD
from common.models import FlatModel, build
from common.wire.arrays import FlatCodec
from common.wire.content import ARRAYS, CONFIG, records_of
from common.wire.messages import Order, TrainReply
from deploy.engines.inline import FIRST_NODE, InlineGrid
from server_app.memory_estimate import MemoryEstimate
from server_app.round.ready_clients import ReadyClients
from server_app.run_dir.checkpoint import save
from server_app.run_dir.run_dir import RunDir
from server_app.state.options import Options
from server_app.state.server_state import ServerState
from server_app.strategy import MethodStrategy

SIZE = 2_500_000  # weights of the model in the server's rounds: 10 MB
WINDOWS, COHORTS = (0, 3, 10), (4, 8)
STEPS = 8  # of a client's training, in each of two rounds
ROUNDS, WARM = 300, 60  # of the growth; the first are not counted
LEGEND = f"""MB: 1e6 bytes, beyond what the process held before; models: in sizes of the model
window: rounds that FedPCD remembers; share: of the bound that the server logs at its start
training itself: activations and copies of weights that torch makes; rest: models beside it
first, warm, last: all it holds after rounds 1, {WARM + 1}, {ROUNDS}; MB a round: least squares"""

Row = dict[str, Any]


# ---------------------------------------------------------------- the server


class Drawing(ClientApp):
    """A client that returns the model minus a random update instead of training."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.codec = FlatCodec(layout)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one order. The update depends on the round and the client."""
        order = Order.read(message.content, self.codec.layout)
        weights, _ = self.codec.unpack(records_of(message.content, ArrayRecord)[ARRAYS])
        rng = np.random.default_rng([order.round, int(order.client)])
        returned = rng.standard_normal(weights.size, dtype=np.float32)
        returned *= 1e-3
        returned += weights
        said = TrainReply(order.client, order.round, returned, {}, 10, 1, 0.1)
        return Message(said.record(self.codec), reply_to=message)


class Checkpoints:
    """A run directory that writes checkpoints only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save_state(self, state: ServerState[Any]) -> None:
        """Write a checkpoint."""
        save(self.folder, state, fingerprint="", keep=1)

    def save_record(self, record: Any) -> None:
        """Keep no records."""

    show_live = save_record


def server_point(window: int, cohort: int) -> Row:
    """Run FedPCD until its history was filled twice; return the peak and the bound."""
    layout = Layout((Shape("weight", (SIZE,)),))
    clients = 40 * cohort  # so that few come twice
    method = FedPCD(history=window)
    grid = InlineGrid(Drawing(layout), clients, {}, 1)
    roster = ReadyClients.of({str(k): FIRST_NODE + k for k in range(clients)})
    options = Options(fraction_train=cohort / clients, fraction_evaluate=0.0, clients=clients)
    _small_round()
    before = settled()
    with tempfile.TemporaryDirectory(prefix="fedkeel-bench-") as folder:
        strategy = MethodStrategy(
            method, options, codec=FlatCodec(layout), local_lr=lambda _: 0.1,
            registry=lambda _: roster, observer=Checkpoints(Path(folder)),
        )  # fmt: skip
        first = FlatCodec(layout).pack(np.zeros(SIZE, np.float32), {})
        strategy.start(grid, first, num_rounds=2 * (window + 2))
    grid.close()
    bound = MemoryEstimate.of(method, layout, clients=clients, asked=cohort)
    return {
        "window": window, "clients a round": cohort, "bound, models": bound.total / (4 * SIZE),
        "bound, MB": bound.total / 1e6, "peak, MB": peak() - before,
        "share": 1e6 * (peak() - before) / bound.total,
    }  # fmt: skip


def _small_round() -> None:
    """Load what a first round loads."""
    tiny_run("fedpcd", 20, 5, 3)


# ---------------------------------------------------------------- growth


def growth_point(method: str, model: str) -> Row:
    """Run many rounds on small pictures; return how memory grows by the round."""
    instead_of_digits(pictures(1200, (1, 16, 16)))
    held: list[float] = []
    note = RunDir.note

    def noted(folder: RunDir, record: Any) -> None:
        note(folder, record)
        held.append(rss())

    cast(Any, RunDir).note = noted
    with tempfile.TemporaryDirectory(prefix="fedkeel-bench-") as out:
        inline(
            parse(
                {
                    "method": method, "model": model, "clients": 20, "participation": 0.25,
                    "rounds": ROUNDS, "out": out, "name": "run", "train.device": "cpu",
                }
            )
        )  # fmt: skip
    return {
        "method": method, "model": model, "first, MB": held[0], "warm, MB": held[WARM],
        "last, MB": held[-1], "MB a round": slope(held[WARM:]),
    }  # fmt: skip


def slope(values: Sequence[float]) -> float:
    """Return the least-squares slope of values at 0, 1, 2, ..."""
    places = np.arange(len(values)) - (len(values) - 1) / 2
    return float(places @ np.asarray(values) / (places @ places))


# ---------------------------------------------------------------- the client


def training_point(model: str, batch: int) -> float:
    """Train a model without a client; return the most beyond its weights and their gradient, MB.

    These are activations and the copies of weights that torch makes for its products.
    """
    _small_round()
    torch.set_num_threads(1)
    pixels = torch.from_numpy(pictures(batch, (3, 32, 32)).images).float()
    flat = FlatModel(build(model, (3, 32, 32), 10, seed=0))
    keep_freed_memory()
    before = settled()
    for _ in range(STEPS):
        flat.gradient.zero_()
        cross_entropy(flat.outputs(pixels), torch.zeros(batch, dtype=torch.int64)).backward()
    return peak() - before


def client_point(model: str, batch: int) -> Row:
    """Let a client carry out two orders of a run with a large model; return its peak."""
    training = alone(training_point, model, batch)
    _small_round()
    data = pictures(2 * STEPS * max(batch, 8), (3, 32, 32))
    instead_of_digits(data)
    config = parse(
        {
            "method": "fedavg", "model": model, "clients": 1, "participation": 1.0,
            "train.batch-size": batch, "train.device": "cpu", "data.test-fraction": 0.5,
        }
    )  # fmt: skip
    InlineGrid(app, 0, {}, 1).close()  # messages need somebody who says whose they are
    layout = FlatModel(build(model, data.shape, len(data.classes), seed=0)).layout
    place: dict[str, Any] = {"partition-id": 0, "num-partitions": 1}
    context = Context(1, FIRST_NODE, place, RecordDict(), config.to_flat())
    before = settled()
    for number in (1, 2):
        reply = app(_order(number, layout), context)
        assert not reply.has_error(), reply.error
        del reply
    most, size = peak() - before, 4 * layout.size / 1e6
    return {
        "model": model, "batch": batch, "model, MB": size, "peak, MB": most,
        "training itself, MB": training, "rest, models": (most - training) / size,
    }  # fmt: skip


def _order(number: int, layout: Layout) -> Message:
    """Return an order to train the model of zeros, which no other order holds in memory."""
    record = FlatCodec(layout).pack(
        np.zeros(layout.size, np.float32),
        {buffer.name: np.ones(buffer.shape, buffer.dtype) for buffer in layout.buffers},
    )
    order = Order(number, 0.01, layout.digest, {}, "0", 0.0)
    content = RecordDict({ARRAYS: record, CONFIG: order.config()})
    return Message(content, FIRST_NODE, "train", ttl=600.0)


# ---------------------------------------------------------------- the tables

PARTS: Mapping[str, tuple[str, Callable[..., Row], Sequence[tuple[Any, ...]], int]] = {
    "server": (
        "the server's rounds with FedPCD, model of 10 MB",
        server_point, list(product(WINDOWS, COHORTS)), 4,
    ),
    "growth": (
        f"{ROUNDS} rounds, without the first {WARM}",
        growth_point, list(product(("fedpcd", "fedpvr"), ("mlp", "cnn"))), 1,
    ),
    "client": (
        "a client's training", client_point, [("vgg11", 1), ("vgg11", 50), ("cnn", 1)], 1,
    ),
}  # fmt: skip


def table(title: str, rows: Sequence[Row]) -> Table:
    """Return the table: a line a point."""
    shown = Table(title=title)
    for name in rows[0] if rows else ():
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(*(_cell(value) for value in row.values()))
    return shown


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def measure(given: argparse.Namespace, kept: dict[str, list[Row]], _: Path) -> None:
    """Measure the parts; `kept` gets each point. One without a result does not cost the others.

    Raises:
        BenchError: some had none.
    """
    failed = []
    for name in given.only:
        _, point, places, few = PARTS[name]
        for place in places[:few] if given.quick else places:
            print(name, *place, file=sys.stderr)  # noqa: T201
            try:
                kept.setdefault(name, []).append(alone(point, *place))
            except BenchError as error:
                failed.append(f"{name}, no result: {error}")
    if failed:
        raise BenchError("\n".join(failed))


def show(given: argparse.Namespace, kept: Mapping[str, list[Row]], why: str | None) -> None:
    """Print the tables and write the file."""
    print_tables([table(PARTS[name][0], rows) for name, rows in kept.items()], LEGEND)
    keep(given.json, why, **kept)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave most points out")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    add_json(parser)
    given = parser.parse_args()
    kept: dict[str, list[Row]] = {}
    carry_out(partial(measure, given, kept), partial(show, given, kept))


if __name__ == "__main__":
    main()
