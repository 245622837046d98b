"""What the runs of a sweep came to: a table for each task, over the seeds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from common.io.text import one_line
from common.runs.records import RECORDS, RecordError
from common.statistics import OverSeeds
from deploy.report.metrics import (
    OfFairness,
    evaluated,
    final,
    jain,
    last_round,
    mean,
    name_of,
    spread,
    worst10,
)
from deploy.report.run_data import RunData, read_run
from deploy.report.run_groups import Study, group_runs

SHARE, NUMBER = "{:.2%}", "{:.3f}"
EDGES: Mapping[str, str] = {SHARE: "{:.1%}", NUMBER: "{:.2f}"}  # how a range is told
LEAST = 11  # characters of a name in a line: with them the widest table fits 80 columns
COLUMNS: Sequence[tuple[str, OfFairness, str, Callable[..., OverSeeds]]] = (
    ("mean\naccuracy", mean, SHARE, max),
    ("worst\n10 %", worst10, SHARE, max),
    ("spread", spread, SHARE, min),
    ("Jain\nindex", jain, NUMBER, max),
)


def results(folders: Sequence[Path]) -> Iterator[RenderableType]:
    """Yield a table for each task of the runs in these folders, and a line for each broken run."""
    runs: list[RunData] = []
    for folder in folders:
        if (folder / RECORDS).exists():
            try:
                runs.append(read_run(folder))
            except RecordError as error:
                yield Text(one_line(f"{folder.name} is left out: {error}"))
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
    for title in ("seeds", *ends, *(column[0] for column in COLUMNS)):
        table.add_column(title, justify="right", no_wrap=True)
    columns = []
    for _, get, form, best in COLUMNS:
        values = [final(family, get) for family in families]
        known = [value for value in values if value is not None]
        top = form.format(best(known, key=lambda value: value.mean).mean)
        columns.append([_cell(value, form, top if len(known) > 1 else "") for value in values])
    for name, family, end, *cells in zip(names, families, rounds, *columns, strict=True):
        seeds = str(len(family.by_seed))
        table.add_row(Text(name), seeds, *([] if are_same else [end]), *cells)
    return table


def _cell(value: OverSeeds | None, form: str, top: str) -> Text:
    if value is None:
        return Text("-")
    told = form.format(value.mean)
    cell = Text(told.replace("%", " %"), "bold" if told == top else "")
    if value.seeds > 1:
        edges = "-".join(EDGES[form].format(e).rstrip("%") for e in (value.low, value.high))
        cell.append(f"\n{edges}", "dim not bold")
    return cell
