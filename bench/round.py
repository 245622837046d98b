"""Seconds of a round of FedAvg: FedKeel, plain PyTorch loops, a Flower app, other simulators.

    python -m bench.round [--rounds 5] [--repeats 3] [--only NAME ...] [--root DIR]
                          [--against NAME=CHECKOUT[:PYTHON]] [--json FILE]

All do the same work: 100 clients with 500 images of CIFAR-10's size each, 10 clients a round, the
model cnn, batches of 50, one epoch. They run one after another, all of them once before any runs
again. Of a run neither the first round counts nor the last, after which some evaluate. Who stops it
gets the table of the runs that were done by then.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from bench.command import add_json, at_least, carry_out, keep, print_tables
from bench.peers import PEERS, Against
from bench.pictures import draw, found
from bench.trial import BenchError, Program, Trial, measure
from bench.work import Work
from common.parallel import usable_cores
from common.runs.records import RECORDS, RoundRecord
from deploy.system.flower_env import QUIET

BIN = Path(sys.prefix) / "bin"
ROOT = Path(__file__).parents[1]
LEAST_ROUNDS = 3
BUSY = 0.1  # cores; a run counts as disturbed if other processes use more
LEGEND = """wall s, CPU s: seconds of a round, medians of all rounds counted, CPU of all processes
range: the medians of single runs; ratio: to the fastest plain loop's wall s
start s: from the command to the first round
others: cores that anything else kept busy, the most of any run"""
DISTURBED = f"\n!: it was more than {BUSY} in a run, which is worth little; repeat it"
TITLES = (
    "program", "wall s", "range", "runs", "CPU s", "ratio", "start s", "accuracy", "others",
)  # fmt: skip


def ours(engine: str, work: Work) -> Program:
    """Return a run of FedKeel in one of its engines."""
    settings = {
        "model": "cnn", "clients": work.clients, "participation": work.cohort / work.clients,
        "rounds": work.rounds, "seed": work.seed, "eval-every": 0, "out": '"."',
        "data.name": "cifar10", "data.root": json.dumps(work.root), "data.download": "false",
        "data.partition": "iid", "data.test-fraction": work.test / (work.train + work.test),
        "train.batch-size": work.batch, "train.lr": work.lr, "train.lr-decay": 1.0,
        "train.device": "cpu",
    }  # fmt: skip
    pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    argv = [str(BIN / "fedkeel"), "run", "fedavg", "--engine", engine, "--name", "run", *pairs]
    return Program(argv, f"run/{RECORDS}", of_record)


def of_record(line: dict[str, Any]) -> Mapping[str, float]:
    """Return a round's seconds without its evaluation, and its accuracy."""
    record = RoundRecord.from_json(line)
    seconds = sum(taken for phase, taken in record.seconds.items() if phase != "evaluate")
    found = record.evaluation.fairness if record.evaluation else None
    return {"seconds": seconds} | ({"accuracy": found.mean} if found else {})


def reference(module: str, *shape: int, work: Work) -> Program:
    """Return a program under bench/reference."""
    argv = [sys.executable, "-m", f"bench.reference.{module}", json.dumps(asdict(work))]
    env = {**QUIET, "PYTHONPATH": str(ROOT)}
    return Program([*argv, "rounds.jsonl", *map(str, shape)], env=env)


def peer(against: Against, work: Work) -> Program:
    """Return another simulator's run."""
    argv = against.command(json.dumps(asdict(work)), "rounds.jsonl", CORES)
    return Program(argv, env={**QUIET, "PYTHONPATH": f"{against.checkout}{os.pathsep}{ROOT}"})


CORES = usable_cores()
PLAIN = {f"plain-{p}x{t}": (p, t) for p, t in ((1, 1), (1, CORES), (CORES, 1))}
PROGRAMS = {
    **{name: partial(reference, "plain", *shape) for name, shape in PLAIN.items()},
    "flower": partial(reference, "quickstart", CORES),
    "inline": partial(ours, "inline"),
    "simulation": partial(ours, "simulation"),
}


def summary(trials: Sequence[Trial]) -> dict[str, float]:
    """Return medians over the counted rounds of all trials.

    "low" and "high" are of single trials; "others" is the most cores that were busy with something
    else in any.
    """
    medians = [median(trial.counted_wall) for trial in trials]
    return {
        "wall": median(chain(*(trial.counted_wall for trial in trials))),
        "low": min(medians),
        "high": max(medians),
        "cpu": median(chain(*(trial.counted_cpu for trial in trials))),
        "start": median(trial.start for trial in trials),
        "accuracy": median(trial.accuracy for trial in trials),
        "others": max(trial.others for trial in trials),
        "runs": len(trials),
    }


def table(rows: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """Return the table; ratios are to the fastest plain loop, where one was run."""
    shown = Table(title=title, box=None)
    for name in TITLES:
        shown.add_column(name, justify="right")
    best = min((row["wall"] for name, row in rows.items() if name in PLAIN), default=None)
    for name, row in rows.items():
        ratio = f"{row['wall'] / best:.2f}" if best else ""
        shown.add_row(
            name, f"{row['wall']:.2f}", f"{row['low']:.2f}-{row['high']:.2f}",
            f"{row['runs']}", f"{row['cpu']:.2f}", ratio, f"{row['start']:.1f}",
            f"{row['accuracy']:.3f}", f"{row['others']:.2f}{' !' * (row['others'] > BUSY)}",
        )  # fmt: skip
    return shown


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=at_least(LEAST_ROUNDS), default=5, help=f"of a run, {LEAST_ROUNDS} or more"
    )
    parser.add_argument(
        "--repeats", type=at_least(1), default=3, help="runs of each program, with seeds 1, 2, ..."
    )
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--root", type=found, help="holds cifar-10-batches-bin; else it is drawn")
    parser.add_argument(
        "--against", type=Against.read, action="append", default=[],
        metavar="NAME=CHECKOUT[:PYTHON]",
        help="run another simulator from its checkout too, with its own Python; may be repeated. "
        + "; ".join(f"{name}: {known.project}" for name, known in PEERS.items())
        + ". All of these were run, at these commits, with Python 3.11 and torch 2.14",
    )  # fmt: skip
    add_json(parser)
    return parser.parse_args()


Trials = dict[str, list[Trial]]


def run_all(given: argparse.Namespace, trials: Trials, home: Path) -> None:
    """Run the programs; `trials` gets each run. One that fails is left out from then on.

    Raises:
        BenchError: some failed; what they said has been printed.
    """
    failed: list[str] = []
    programs: dict[str, Callable[..., Program]] = {name: PROGRAMS[name] for name in given.only}
    programs |= {against.name: partial(peer, against) for against in given.against}
    root = given.root or home / "drawn"
    if not given.root:
        draw(root)
    for number in range(given.repeats):
        work = Work(str(root), given.rounds, seed=number + 1)
        for name in [name for name in programs if name not in failed]:
            print(f"{name}, {number + 1} of {given.repeats}", file=sys.stderr)  # noqa: T201
            try:
                done = measure(programs[name](work=work), home / f"{name}-{number}", work.rounds)
                trials.setdefault(name, []).append(done)
            except BenchError as error:
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr)  # noqa: T201
    if failed:
        raise BenchError(f"not all programs did the work: {', '.join(failed)} failed, see above")


def show(given: argparse.Namespace, trials: Trials, why: str | None) -> None:
    """Print the table and write the file."""
    rows = {name: summary(done) for name, done in trials.items()}
    title = f"FedAvg, {given.rounds} rounds a run, on {CORES} cores"
    disturbed = any(row["others"] > BUSY for row in rows.values())
    print_tables([table(rows, title)], LEGEND + DISTURBED * disturbed)
    kept = {name: {**rows[name], "trials": [*map(asdict, trials[name])]} for name in rows}
    work = Work(str(given.root or "drawn"), given.rounds)
    keep(given.json, why, {"work": asdict(work)}, programs=kept)


def main() -> None:
    """Measure and print the table."""
    given = arguments()
    trials: Trials = {}
    carry_out(partial(run_all, given, trials), partial(show, given, trials))


if __name__ == "__main__":
    main()
