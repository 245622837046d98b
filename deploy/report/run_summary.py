"""The summary of one or several runs, as a terminal table and as `summary.json`.

All numbers come from the last evaluated round, over the clients that have test samples.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from common.fairness import rounds_to_reach
from common.io.files import atomic_write
from common.runs.client_scores import Evaluation
from common.runs.json_file import json_values
from deploy.report.columns import MEGABYTES, RUN_COLUMNS, SECONDS, Column
from deploy.report.run_data import RunData


def summary_table(runs: Sequence[RunData], data: str = "") -> Table:
    """Return a table with one line per run. Its caption says what was measured.

    Args:
        runs: at least one.
        data: the data set and its split in words.
    """
    table = Table(box=SIMPLE_HEAD, caption=Text(measured(runs, data)), caption_justify="left")
    table.add_column("method", overflow="fold", vertical="bottom")
    for column in RUN_COLUMNS:
        table.add_column(column.terminal_title, justify="right", no_wrap=True)
    columns = [_cells(column, runs) for column in RUN_COLUMNS]
    for run, *row in zip(runs, *columns, strict=True):
        table.add_row(Text(run.label), *row)
    return table


def _cells(column: Column, runs: Sequence[RunData]) -> list[Text]:
    """Return the formatted values. The best one is bold unless all are equal."""
    values = [column.of_run(run) for run in runs]
    known = [value for value in values if value is not None]
    texts = ["-" if value is None else column.text(value) for value in values]
    best = column.text(column.best(known)) if len(set(texts)) > 1 else ""
    return [Text(text, "bold" if text == best else "") for text in texts]


def measured(runs: Sequence[RunData], data: str = "") -> str:
    """Return one line that says what the numbers of a table were measured on.

    Args:
        runs: the runs of the table.
        data: the data set and its split in words.
    """
    last = [(run.label, run.last_evaluation) for run in runs]
    rounds = {label: evaluated[0] for label, evaluated in last if evaluated}
    clients = {label: _clients(evaluated[1]) for label, evaluated in last if evaluated}
    length = {run.label: run.rounds for run in runs}
    parts = [
        data,
        _common_or_each(clients, "{}") or "nothing evaluated yet",
        _common_or_each(length, "{} rounds"),
        _common_or_each(rounds, "evaluated after round {}"),
        "MB per client: down and up in one round",
        "s per round: without evaluation",
    ]
    return "; ".join(part for part in parts if part)


def _clients(evaluation: Evaluation) -> str:
    number, absent = len(evaluation.clients), len(evaluation.absent)
    return f"{number} clients" + (f" ({absent} more without a result)" if absent else "")


def _common_or_each(values: Mapping[str, Any], form: str) -> str:
    """Return one phrase if all runs have the same value, else one phrase per run."""
    if len(set(values.values())) == 1:
        return form.format(next(iter(values.values())))
    return ", ".join(f"{label}: {form.format(value)}" for label, value in values.items())


def summary_json(runs: Sequence[RunData], data: str = "") -> dict[str, Any]:
    """Return the summary as JSON values. Undefined values are None."""
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
        **{column.key: column.of_run(run) for column in (MEGABYTES, SECONDS)},
        "rounds_to_final_accuracy_of": {
            label: rounds_to_reach(run.curve, target) for label, target in targets.items()
        },
    }
    return {key: json_values(value, key) for key, value in numbers.items()}


def write_summary(runs: Sequence[RunData], out_dir: Path, data: str = "") -> Path:
    """Write `summary.json` and return its path."""
    path = out_dir / "summary.json"
    text = json.dumps(summary_json(runs, data), allow_nan=False, indent=2) + "\n"
    with atomic_write(path) as file:
        file.write(text.encode())
    return path
