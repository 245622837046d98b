"""What the records of one or several runs say: a table and json_values numbers.

All figures are of the last evaluated round, over the clients that had test examples.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from common.fairness import Fairness, rounds_to_reach
from common.io.files import replacing
from common.runs.records import Evaluation, json_values
from deploy.report.run_data import RunData


def megabytes_per_client_round(run: RunData) -> float | None:
    """Mean MB (10^6 bytes) sent to a client asked plus mean MB that came back from one."""
    down = [size for record in run.records for size in record.bytes_down.values()]
    up = [size for record in run.records for size in record.bytes_up.values()]
    return (sum(down) / len(down) + sum(up) / max(len(up), 1)) / 1e6 if down else None


def seconds_per_round(run: RunData) -> float | None:
    """Mean seconds of a round without its evaluation."""
    phases = [record.seconds for record in run.records if record.seconds]
    spent = [sum(s for phase, s in each.items() if phase != "evaluate") for each in phases]
    return sum(spent) / len(spent) if spent else None


@dataclass(frozen=True)
class Column:
    """A column of the table: how to get its value, how to print it, which end is good."""

    title: str
    value: Callable[[RunData], float | None]
    form: str
    best: Callable[[Sequence[float]], float]


def _of_fairness(get: Callable[[Fairness], float]) -> Callable[[RunData], float | None]:
    return lambda run: get(run.evaluated[-1][1]) if run.evaluated else None


COLUMNS = (
    Column("mean\naccuracy", _of_fairness(lambda f: f.mean), "{:.2%}", max),
    Column("worst\n10 %", _of_fairness(lambda f: f.worst10), "{:.2%}", max),
    Column("spread", _of_fairness(lambda f: f.spread), "{:.2%}", min),
    Column("Jain\nindex", _of_fairness(lambda f: f.jain), "{:.3f}", max),
    Column("lowest\nclient", _of_fairness(lambda f: f.minimum), "{:.2%}", max),
    Column("MB per\nclient", megabytes_per_client_round, "{:.2f}", min),
    Column("s per\nround", seconds_per_round, "{:.2f}", min),
)


def _cells(column: Column, runs: Sequence[RunData]) -> list[Text]:
    """The column's printed values, the best in bold unless all are the same."""
    values = [column.value(run) for run in runs]
    known = [value for value in values if value is not None]
    texts = ["-" if value is None else column.form.format(value) for value in values]
    best = column.form.format(column.best(known)) if len(set(texts)) > 1 else ""
    return [Text(text.replace("%", " %"), "bold" if text == best else "") for text in texts]


def measured(runs: Sequence[RunData], data: str = "") -> str:
    """Say in one line what the numbers were measured on.

    Args:
        runs: the runs of the table.
        data: the data set and its split in words.
    """
    last = [(run.label, run.last_evaluation) for run in runs]
    rounds = {label: found[0] for label, found in last if found}
    clients = {label: _clients(found[1]) for label, found in last if found}
    length = {run.label: run.rounds for run in runs}
    parts = [
        data,
        _shared(clients, "{}") or "nothing evaluated yet",
        _shared(length, "{} rounds"),
        _shared(rounds, "evaluated after round {}"),
        "MB per client: down and up in one round",
        "s per round: without evaluation",
    ]
    return "; ".join(part for part in parts if part)


def _clients(evaluation: Evaluation) -> str:
    number, absent = len(evaluation.clients), len(evaluation.absent)
    return f"{number} clients" + (f" ({absent} more without a result)" if absent else "")


def _shared(values: Mapping[str, Any], form: str) -> str:
    """One phrase when all runs agree, else one for each run."""
    if len(set(values.values())) == 1:
        return form.format(next(iter(values.values())))
    return ", ".join(f"{label}: {form.format(value)}" for label, value in values.items())


def summary_table(runs: Sequence[RunData], data: str = "") -> Table:
    """Return the end summary, one line a run, what was measured under it.

    Args:
        runs: at least one.
        data: the data set and its split in words.
    """
    table = Table(box=SIMPLE_HEAD, caption=Text(measured(runs, data)), caption_justify="left")
    table.add_column("method", overflow="fold", vertical="bottom")
    for column in COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
    columns = [_cells(column, runs) for column in COLUMNS]
    for run, *row in zip(runs, *columns, strict=True):
        table.add_row(Text(run.label), *row)
    return table


def summary_json(runs: Sequence[RunData], data: str = "") -> dict[str, Any]:
    """Return the summary as json_values JSON values; what is undefined is None."""
    return {"data": data, "runs": [_numbers(run, runs) for run in runs]}


def _numbers(run: RunData, others: Sequence[RunData]) -> dict[str, Any]:
    last = run.last_evaluation
    targets = {o.label: o.curve[-1][1] for o in others if o.curve and o.label != run.label}
    numbers = {
        "label": run.label,
        "rounds": run.rounds,
        "void_rounds": sum(record.void is not None for record in run.records),
        "drops": sum(len(record.dropped) for record in run.records),
        "evaluated_round": last and last[0],
        "fairness": last and last[1].fairness and asdict(last[1].fairness),
        "loss": last and last[1].loss,
        "absent": dict(last[1].absent) if last else {},
        "megabytes_per_client_round": megabytes_per_client_round(run),
        "seconds_per_round": seconds_per_round(run),
        "rounds_to_final_accuracy_of": {
            label: rounds_to_reach(run.curve, target) for label, target in targets.items()
        },
    }
    return {key: json_values(value, key) for key, value in numbers.items()}


def write_summary(runs: Sequence[RunData], out_dir: Path, data: str = "") -> Path:
    """Write `summary.json` and return its path."""
    path = out_dir / "summary.json"
    text = json.dumps(summary_json(runs, data), allow_nan=False, indent=2) + "\n"
    with replacing(path) as file:
        file.write(text.encode())
    return path
