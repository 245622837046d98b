"""All methods on one protocol: Fashion-MNIST, 100 clients, 10 % a round, 60 rounds.

    python -m bench.methods [--out runs/methods] [--rounds 60] [--alphas 0.1 0.01]

The learning rate of each method is the best one of the same list, by mean accuracy with seed 0. The
table is of seed 1, on which nothing was chosen. Existing runs are not repeated.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.command import at_least, carry_out, keep, writable
from bench.trial import BenchError
from common.methods import METHODS
from common.runs.outcome import OUTCOME
from deploy.report.columns import megabytes_per_client_round
from deploy.report.run_data import RunData, load_runs

FEDKEEL = (sys.executable, "-m", "deploy.cli.main")
RATES = (0.02, 0.05, 0.1, 0.2)
TUNED_ON, TESTED_ON = 0, 1
FILE = "methods.json"


def folder(text: str) -> Path:
    """Return the folder of the runs, created if necessary.

    Raises:
        ArgumentTypeError: the folder is not writable.
    """
    path = Path(text).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be made: {error.strerror}") from None
    return writable(str(path / FILE)).parent


def runs_of(
    out: Path, alpha: float, lr: float, seed: int, rounds: int, methods: Sequence[str]
) -> dict[str, list[RunData]]:
    """Return the runs of these methods, each followed by its personal models if it has some."""
    home = out / f"alpha{alpha:g}-lr{lr:g}-seed{seed}"
    settings = {
        "data.name": "fashion-mnist", "data.alpha": alpha, "model": "mlp", "clients": 100,
        "participation": 0.1, "rounds": rounds, "train.lr": lr, "train.batch-size": 50,
        "seed": seed, "eval-every": 20, "server.checkpoint-every": 0, "out": home,
    }  # fmt: skip
    pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    for method in methods:
        if not (home / method / OUTCOME).exists():
            command = [*FEDKEEL, "run", method, "--engine", "inline", "--name", method]
            # a failed run is recorded in its outcome
            subprocess.run(
                [*command, *pairs], check=False, stdout=subprocess.DEVNULL, start_new_session=True
            )  # keeps Ctrl-C from a run, which would then count as completed
    return {method: load_runs({method: home / method}) for method in methods}


def ended(run: RunData) -> bool:
    """Return whether the last round was evaluated."""
    return bool(run.evaluated) and run.evaluated[-1][0] == run.rounds


def table(out: Path, alpha: float, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one row per method, and one for its personal models if it has some."""
    tuned = {lr: runs_of(out, alpha, lr, TUNED_ON, rounds, list(METHODS)) for lr in RATES}
    for method in METHODS:
        # the last run of a method is that of its personal models, if it has some
        scores = {lr: tuned[lr][method][-1] for lr in RATES}
        known = {lr: run.evaluated[-1][1].mean for lr, run in scores.items() if ended(run)}
        if not known:
            raise BenchError(f"no run of {method} in {out} came to its end; see their outcomes")
        best = max(known, key=lambda lr: known[lr])
        for run in runs_of(out, alpha, best, TESTED_ON, rounds, [method])[method]:
            fairness = run.evaluated[-1][1]
            server = [record.seconds["aggregate"] for record in run.records]
            yield {
                "method": run.label,
                "lr": best,
                "mean": fairness.mean,
                "worst10": fairness.worst10,
                "spread": fairness.spread,
                "jain": fairness.jain,
                "megabytes": megabytes_per_client_round(run),
                "server_seconds": median(server[1:]),
                "void": sum(record.void is not None for record in run.records),
            }


Tables = dict[str, list[dict[str, Any]]]  # by alpha


def measure(given: argparse.Namespace, tables: Tables, _: Path) -> None:
    """Run the missing runs and add each row to `tables`."""
    for alpha in given.alphas:
        for row in table(given.out, alpha, given.rounds):
            tables.setdefault(f"{alpha:g}", []).append(row)


def show(given: argparse.Namespace, tables: Tables, why: str | None) -> None:
    """Print the tables and write them as JSON."""
    console = Console()
    for alpha, rows in tables.items():
        console.print(f"\nalpha {alpha}\n")
        console.print("| method | lr | mean | worst 10 % | spread | Jain | MB | server ms |")
        console.print("|---|---|---|---|---|---|---|---|")
        for row in rows:
            console.print(
                f"| {row['method']} | {row['lr']:g} | {row['mean']:.2%} | {row['worst10']:.2%} | "
                f"{row['spread']:.2%} | {row['jain']:.3f} | {row['megabytes']:.2f} | "
                f"{1000 * row['server_seconds']:.0f} |",
                soft_wrap=True, highlight=False,
            )  # fmt: skip
    keep(given.out / FILE, why, methods=tables)


def main() -> None:
    """Run what is missing, then print the tables and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=folder, default="runs/methods")
    parser.add_argument("--rounds", type=at_least(2), default=60)
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.1, 0.01])
    given = parser.parse_args()
    tables: Tables = {}
    carry_out(partial(measure, given, tables), partial(show, given, tables))


if __name__ == "__main__":
    main()
