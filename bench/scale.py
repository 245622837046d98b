"""Growth curves: clients that are registered, clients of a round, rows of FedPCD's history.

    python -m bench.scale [--quick] [--only CURVE ...] [--json FILE]

All on the inline engine with a tiny model, one worker, each point in a process of its own. Where a
point is ten times as large as the one before it, what grows by ten is linear. Growth is told from
the last two of all points only: among smaller ones much is still constant.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

import common.methods.fedpcd
import common.methods.history
from bench.alone import PatienceError, alone, peak, settled
from bench.command import add_json, carry_out, keep, print_tables
from bench.tiny import tiny_run
from common.layout import Layout
from common.layout import Tensor as Shape
from common.methods.fedpcd import FedPCD
from common.methods.history import History
from common.runs.records import RoundRecord
from common.types import ClientUpdate, Cohort
from server_app.run_dir.checkpoint import save
from server_app.state.server_state import ServerState, next_state

ROUNDS, REPEATS = 12, 3  # of a run, of which the first is not counted; of a round with history
KEPT = 11  # rounds whose rows FedPCD's history holds by default, the newest included
SIZE = 4000  # weights of the model whose rows are drawn
KINDS, SHARED, OF_KIND, OWN = 10, 0.2, 2.0, 3.0  # of drawn clients; lengths of their parts
METHOD, LAYOUT = FedPCD(), Layout((Shape("weight", (SIZE,)),))
PARTS = (
    (common.methods.history, "_products"),
    (common.methods.fedpcd, "least_multipliers"),
    (common.methods.fedpcd, "combine"),
)
PHASES = {"orders": "configure", "aggregation": "aggregate", "checkpoint": "checkpoint"}
PATIENCE_SECONDS = 240.0
LEGEND = f"""s, ms: seconds and milliseconds, medians; kB, MB: 1e3 and 1e6 bytes
RSS: the peak beyond what the process holds once everything is imported
records.jsonl: of {ROUNDS} rounds, one evaluated; active: rows with a multiplier
grows as: the power between the last two points; left out where not all points are measured"""

Row = dict[str, float]


def outside(record: RoundRecord) -> float:
    """Return the seconds of a round that its clients did not train, with a single worker."""
    phases = ("configure", "train", "aggregate", "checkpoint")
    work = sum(parts["work"] for parts in record.worked.values())
    return sum(record.seconds.get(phase, 0.0) for phase in phases) - work


def clients_point(clients: int) -> Row:
    """Measure a federation of so many clients, ten of which train in a round."""
    before, begin = settled(), time.perf_counter()
    ran = tiny_run("fedavg", clients, 10, ROUNDS)
    whole = time.perf_counter() - begin
    records = ran.records
    return {
        "start, s": whole - sum(sum(record.seconds.values()) for record in records),
        "a round beside the training, ms": 1e3 * median(map(outside, records[1:])),
        "evaluation of all, s": records[-1].seconds["evaluate"],
        "RSS, MB": peak() - before,
        "live.json, kB": ran.bytes["live.json"] / 1e3,
        "records.jsonl, kB": ran.bytes["records.jsonl"] / 1e3,
        "partition.json, kB": ran.bytes["partition.json"] / 1e3,
        "checkpoint, kB": ran.bytes[f"checkpoints/round-{ROUNDS:06d}.ckpt"] / 1e3,
    }


def cohort_point(cohort: int) -> Row:
    """Measure rounds of so many clients, out of 2,000."""
    before = settled()
    ran = tiny_run("fedavg", 2000, cohort, ROUNDS)
    records = ran.records[1:]
    phases = {
        f"of it: {name}, ms": 1e3 * median(record.seconds[phase] for record in records)
        for name, phase in PHASES.items()
    }
    worked = [sum(parts["work"] for parts in record.worked.values()) for record in records]
    return {
        "a round beside the training, ms": 1e3 * median(map(outside, records)),
        **phases,
        "the training itself, ms": 1e3 * median(worked),
        "RSS, MB": peak() - before,
        "records.jsonl, kB": ran.bytes["records.jsonl"] / 1e3,
    }


def drawn(cohort: int, round: int) -> Cohort:  # noqa: A002
    """Draw displacements [SIZE] of clients of ten kinds, each with much of its own.

    As with real clients of skewed data some 40 % of the rows lose by the mean and some 15 % end up
    with a multiplier.
    """
    rng = np.random.default_rng(0)
    shared, *kinds = rng.standard_normal((1 + KINDS, SIZE))
    rng = np.random.default_rng([round, cohort])
    kind = rng.integers(0, KINDS, cohort)
    own = rng.standard_normal((cohort, SIZE))
    rows = SHARED * shared + OF_KIND * (kinds - np.mean(kinds, axis=0))[kind] + OWN * own
    updates = [
        ClientUpdate(f"{round}-{k}", 10, 1, 0.1, row)
        for k, row in enumerate(rows.astype(np.float32))
    ]
    return Cohort(round, 0.1, KEPT * cohort, tuple(updates))


@contextmanager
def watched(*places: tuple[Any, str]) -> Iterator[Row]:
    """Yield the seconds that these functions of modules take inside the block, by name."""
    seconds: Row = {}
    kept = [(module, name, getattr(module, name)) for module, name in places]

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin

        return call

    for module, name, function in kept:
        setattr(module, name, counted(name, function))
    try:
        yield seconds
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


def full(cohort: int) -> tuple[ServerState[History], Cohort]:
    """Return a state with ten rounds of FedPCD's history, and the replies of the next round."""
    history = History()
    for number in range(1, KEPT):
        arrived = drawn(cohort, number)
        history = history.join(arrived, arrived.shares, before=0).history
    state = ServerState(KEPT - 1, np.zeros(SIZE, np.float32), {}, history)
    return state, drawn(cohort, KEPT)


def timed_round(state: ServerState[History], cohort: Cohort) -> tuple[float, Row]:
    """Return the seconds of a round, and of its parts."""
    begin = time.perf_counter()
    with watched(*PARTS) as seconds:
        next_state(state, cohort, METHOD, LAYOUT, 1.0)
    return time.perf_counter() - begin, seconds


def history_point(rows: int) -> Row:
    """Measure a round of FedPCD with so many rows: a cohort of 1/11 beside ten rounds before it."""
    timed_round(*full(10))  # loads the QP solver
    before = settled()
    state, cohort = full(rows // KEPT)
    rounds = [timed_round(state, cohort) for _ in range(REPEATS)]
    whole, seconds = sorted(rounds, key=itemgetter(0))[REPEATS // 2]
    following, step = next_state(state, cohort, METHOD, LAYOUT, 1.0)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fedkeel-bench-") as folder:
        size = save(Path(folder), following, fingerprint="", keep=1).stat().st_size
    return {
        "aggregation, s": whole,
        "of it: products, s": seconds["_products"],
        "of it: multipliers, s": seconds["least_multipliers"],
        "of it: combination, s": seconds.get("combine", 0.0),
        "of it: all else, s": whole - sum(seconds.values()),
        "checkpoint, s": time.perf_counter() - begin,
        "checkpoint, MB": size / 1e6,
        "RSS, MB": peak() - before,
        "active": step.report["active"],
    }


@dataclass(frozen=True)
class Curve:
    """What is measured at which points; `quick` is how many of them a quick run takes."""

    title: str
    point: Callable[[int], Row]
    sizes: Sequence[int]
    quick: int


CURVES: Mapping[str, Curve] = {
    "clients": Curve(
        "clients that are registered (FedAvg, 10 a round)",
        clients_point, (100, 1000, 10_000, 100_000), 3,
    ),
    "cohort": Curve("clients of a round (FedAvg, 2,000 clients)", cohort_point, (10, 100, 1000), 3),
    "history": Curve(
        f"rows of the history, with the cohort (FedPCD, {SIZE:,} weights)",
        history_point, (110, 1100, 3300, 11_000), 2,
    ),
}  # fmt: skip


def growth(sizes: Sequence[int], values: Sequence[float]) -> float | None:
    """Return p in value ~ size^p between the last two points; None where that says nothing."""
    if len(sizes) < 2 or min(values[-2:]) <= 0:
        return None
    return float(np.log(values[-1] / values[-2]) / np.log(sizes[-1] / sizes[-2]))


def table(curve: Curve, rows: Mapping[int, Row | None]) -> Table:
    """Return the table: a column a point, and how each figure grows if all points are there."""
    shown = Table(title=curve.title)
    done = {size: row for size, row in rows.items() if row is not None}
    shown.add_column("")
    for size in rows:
        shown.add_column(f"{size:,}", justify="right")
    shown.add_column("grows as", justify="right")
    is_whole = list(done) == list(curve.sizes)
    for name in next(iter(done.values()), {}):
        values = [row[name] for row in done.values()]
        power = growth(curve.sizes, values) if is_whole else None
        cells = [
            _number(row[name]) if row else f"> {PATIENCE_SECONDS:g} s" for row in rows.values()
        ]
        shown.add_row(name, *cells, "" if power is None else f"n^{power:.1f}")
    return shown


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


Points = dict[str, dict[int, Row | None]]


def measure(given: argparse.Namespace, points: Points, _: Path) -> None:
    """Measure the curves; `points` gets each point, None where it took too long."""
    for name in given.only:
        curve = CURVES[name]
        for size in curve.sizes[: curve.quick] if given.quick else curve.sizes:
            print(f"{name}, {size}", file=sys.stderr)  # noqa: T201
            try:
                row = alone(curve.point, size, patience=PATIENCE_SECONDS)
            except PatienceError:
                row = None
            points.setdefault(name, {})[size] = row


def show(given: argparse.Namespace, points: Points, why: str | None) -> None:
    """Print the tables and write the file."""
    print_tables([table(CURVES[name], rows) for name, rows in points.items()], LEGEND)
    keep(given.json, why, curves=points)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave the largest points out")
    parser.add_argument("--only", nargs="+", choices=list(CURVES), default=list(CURVES))
    add_json(parser)
    given = parser.parse_args()
    points: Points = {}
    carry_out(partial(measure, given, points), partial(show, given, points))


if __name__ == "__main__":
    main()
