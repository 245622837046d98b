"""The error of FedPCD's history in half precision, measured on the updates of a real run.

    python -m bench.half RUN [RUN ...]

Takes the newest checkpoint of each run of FedPCD (`fedkeel run fedpcd`), lets the clients of its
last round be the cohort again and all others the history, and works out the direction with the
history as it is, and as float16 and bfloat16 would have stored it. The table has the constraints
that are active with either, the largest error of an inner product relative to the largest square,
and that of the direction relative to its length.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from bench.command import add_json, carry_out, keep, print_tables
from bench.trial import BenchError
from common.client_vectors import ClientVectors, Entry
from common.geometry import inner_products
from common.layout import Layout, Tensor
from common.methods import FedPCD
from common.methods.history import History
from common.types import ClientId, ClientUpdate, Cohort, Vector
from server_app.run_dir.checkpoint import load_newest, newest_head
from server_app.run_dir.run_dir import CHECKPOINTS, WEIGHTS

LEGEND = """active: constraints, with float32 and with the other
inner products: the largest error, relative to the largest square; step: its error, of its length"""


def rounded(kind: torch.dtype) -> Callable[[Vector], Vector]:
    """Return a function that rounds a vector to another dtype and back."""
    return lambda vector: torch.from_numpy(np.array(vector)).to(kind).float().numpy()


STORED: Mapping[str, Callable[[Vector], Vector]] = {
    "float16": rounded(torch.float16),
    "bfloat16": rounded(torch.bfloat16),
}


def finished(text: str) -> Path:
    """Return the run directory.

    Raises:
        ArgumentTypeError: it has no checkpoint or no weights.
    """
    run = Path(text)
    head, _ = newest_head(run / CHECKPOINTS)
    if head is None or not (run / WEIGHTS).exists():
        raise argparse.ArgumentTypeError(f"{run} is no finished run with a checkpoint")
    return run


def read(run: Path) -> tuple[Cohort, History, Layout]:
    """Return a run's last cohort, the rest of its history, and its layout.

    Raises:
        BenchError: the run is not one of FedPCD with a history of earlier rounds.
    """
    head, _ = newest_head(run / CHECKPOINTS)
    assert head is not None, "the run is a finished one"
    with np.load(run / WEIGHTS) as named:
        layout = Layout(tuple(Tensor(name, named[name].shape) for name in named.files))
    state, _ = load_newest(run / CHECKPOINTS, FedPCD(), layout, fingerprint=head.fingerprint)
    if state is None or not any(e.round < state.round for e in state.method.seen.entries.values()):
        raise BenchError(f"{run} is no run of FedPCD that remembers earlier rounds")
    entries = state.method.seen.entries
    newest = {client: e for client, e in entries.items() if e.round == state.round}
    updates = tuple(ClientUpdate(client, 1, 1, 1.0, e.vector) for client, e in newest.items())
    cohort = Cohort(state.round, state.method.rates[updates[0].client], len(entries), updates)
    older = ClientVectors({client: e for client, e in entries.items() if client not in newest})
    return cohort, remembered(older, state.method.rates), layout


def remembered(seen: ClientVectors, rates: Mapping[ClientId, float]) -> History:
    """Return the history of these displacements, their products in float64."""
    vectors = [entry.vector for entry in seen.entries.values()]
    kept = {client: rates[client] for client in seen.entries}
    return History(seen, kept, inner_products(vectors, vectors))


def stored(history: History, store: Callable[[Vector], Vector]) -> History:
    """Return the history with every displacement rounded by `store`."""
    seen = {c: Entry(e.round, store(e.vector)) for c, e in history.seen.entries.items()}
    return remembered(ClientVectors(seen), history.rates)


def compared(run: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each way to store the history."""
    cohort, history, layout = read(run)
    exact = FedPCD().aggregate(cohort, history, layout)
    for name, store in STORED.items():
        half = stored(history, store)
        step = FedPCD().aggregate(cohort, half, layout)
        products = np.abs(half.products - history.products)
        apart = np.linalg.norm(step.direction - exact.direction)
        yield {
            "run": run.name, "stored as": name, "rows": len(history.seen),
            "active": f"{exact.report['active']} / {step.report['active']}",
            "inner products": float(products.max() / np.diag(history.products).max()),
            "step": float(apart / np.linalg.norm(exact.direction)),
        }  # fmt: skip


def measure(given: argparse.Namespace, rows: list[dict[str, Any]], _: Path) -> None:
    """Compare for every run and append the results to `rows`."""
    for run in given.runs:
        rows.extend(compared(run))


def show(given: argparse.Namespace, rows: list[dict[str, Any]], why: str | None) -> None:
    """Print the table and write the file."""
    table = Table(title="a history in half precision, against float32")
    for title in rows[0] if rows else ():
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*(f"{v:.1e}" if isinstance(v, float) else f"{v}" for v in row.values()))
    print_tables([table], LEGEND)
    keep(given.json, why, rows=rows)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "runs", nargs="+", type=finished, metavar="RUN", help="folder of a finished run"
    )
    add_json(parser)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    carry_out(partial(measure, given, rows), partial(show, given, rows))


if __name__ == "__main__":
    main()
