"""Results of a sweep: a table per task, over the seeds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from common.io.text import single_line
from common.runs.json_file import RecordError
from common.runs.records import RECORDS
from common.statistics import SeedSummary
from deploy.report.columns import SWEEP_COLUMNS, Column
from deploy.report.metrics import evaluated, last_round, name_of
from deploy.report.run_data import RunData, read_run
from deploy.report.run_groups import Study, group_runs

LEAST = 11  # characters of a name in a line: with them the widest table fits 80 columns


def results(folders: Sequence[Path]) -> Iterator[RenderableType]:
    """Yield a table for each task of the runs in these folders, and a line for each broken run."""
    runs: list[RunData] = []
    for folder in folders:
        if (folder / RECORDS).exists():
            try:
                runs.append(read_run(folder))
            except RecordError as error:
                yield Text(single_line(f"{folder.name} is left out: {error}"))
    yield from (study_table(study) for study in group_runs(runs) if evaluated(study))


def study_table(study: Study) -> Table:
    """Return a line for each family: its means over the seeds, and below them their range."""
    families = evaluated(study)
    rounds = [str(last_round(family)) for family in families]
    are_same = len(set(rounds)) == 1
    told = f"{study.title}; after round {rounds[0]}" if are_same else study.title
    table = Table(title=Text(told), title_justify="left", box=SIMPLE_HEAD)
    names = [name_of(family) for family in families]
    longest = max((len(word) for name in names for word in name.split()), default=LEAST)
    table.add_column("", overflow="fold", min_width=min(longest, LEAST))
    ends = [] if are_same else ["round"]
    for title in ("seeds", *ends, *(column.terminal_title for column in SWEEP_COLUMNS)):
        table.add_column(title, justify="right", no_wrap=True)
    columns = []
    for column in SWEEP_COLUMNS:
        values = [column.of_family(family) for family in families]
        known = [value.mean for value in values if value is not None]
        best = column.text(column.best(known)) if len(known) > 1 else ""
        columns.append([_cell(column, value, best) for value in values])
    for name, family, end, *cells in zip(names, families, rounds, *columns, strict=True):
        seeds = str(len(family.by_seed))
        table.add_row(Text(name), seeds, *([] if are_same else [end]), *cells)
    return table


def _cell(column: Column, value: SeedSummary | None, best: str) -> Text:
    if value is None:
        return Text("-")
    mean = column.text(value.mean)
    cell = Text(mean, "bold" if mean == best else "")
    if value.seeds > 1:  # one decimal less, so that the table fits 80 columns
        ends = (column.text(end, column.decimals - 1) for end in (value.low, value.high))
        cell.append("\n" + "-".join(end.removesuffix(" %") for end in ends), "dim not bold")
    return cell
