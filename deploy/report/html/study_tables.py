"""The tables of a study in the page: results, differences, rounds to target, unused replies."""

from collections.abc import Sequence

from common.statistics import LEVEL, STATISTICS, PairedDifference, SeedSummary
from deploy.report import metrics
from deploy.report.columns import FAMILY_COLUMNS, MEAN, PERCENT, SECONDS, WORST10, Column
from deploy.report.figures.style import series_of
from deploy.report.html.parts import Cell, TableData, cells, name_cell
from deploy.report.run_data import RunData
from deploy.report.run_groups import Study

MOST_UNUSED = 30  # rows


def results_table(study: Study) -> TableData:
    """Return the final mean and range over seeds of each family. The best value is bold."""
    series = series_of(study)
    series.sort(key=lambda each: study.families.index(each.family))
    columns = [
        _value_cells(column, [column.of_family(each.family) for each in series])
        for column in FAMILY_COLUMNS
    ]
    return TableData(
        ["method", "after round", *(column.title for column in FAMILY_COLUMNS)],
        [
            cells(name_cell(each), metrics.last_round(each.family), *values)
            for each, *values in zip(series, *columns, strict=True)
        ],
        "Mean over the seeds, with the range over the seeds below it. The best value of a column "
        "is bold. The mean over the rounds is the mean height of the accuracy curve. MB counts "
        "both directions.",
    )


def _value_cells(column: Column, values: Sequence[SeedSummary | None]) -> list[Cell]:
    known = [value.mean for value in values if value]
    texts = [_text(column, value.mean) if value else "-" for value in values]
    comparable = column is not SECONDS  # they depend on the load of the machine
    best = _text(column, column.best(known)) if comparable and len(set(texts)) > 1 else ""
    return [
        Cell(text, "b" if text == best else "", _range(column, value))
        for text, value in zip(texts, values, strict=True)
    ]


def _text(column: Column, value: float) -> str:
    return column.text(value, 1 if column.unit == PERCENT else None)


def _range(column: Column, value: SeedSummary | None) -> str:
    if value is None or value.seeds < 2:
        return ""
    ends = [_text(column, end).removesuffix(" %") for end in (value.low, value.high)]
    return " to ".join(dict.fromkeys(ends))


def difference_table(study: Study) -> TableData | None:
    """Return the difference of each family to the reference, with its interval."""
    base = metrics.reference(study)
    by_metric = {name: metrics.differences(study, name) for name in STATISTICS}
    if base is None or not by_metric[MEAN.key]:
        return None
    worst = {id(family): value for family, value in by_metric[WORST10.key]}
    return TableData(
        [f"compared with {metrics.name_of(base)}", MEAN.title, WORST10.title, "common seeds"],
        [
            cells(metrics.name_of(family), _points(value), _points(worst[id(family)]), value.seeds)
            for family, value in by_metric[MEAN.key]
        ],
        f"Percentage points on the same clients and seeds, with the {100 * LEVEL:.0f} % interval "
        "of a paired bootstrap over seeds and clients. Bold: the interval excludes 0 and has a "
        "width. With one seed, the interval says nothing about other seeds.",
    )


def _points(value: PairedDifference) -> Cell:
    ends = f"{100 * value.low:+.1f} to {100 * value.high:+.1f}"
    return Cell(f"{100 * value.value:+.1f}", "b" if value.is_clear else "", ends)


def target_table(study: Study) -> TableData | None:
    """Return the round in which each family first reaches the target, with its speed-up."""
    by_family = metrics.reached(study)
    if len(by_family) < 2:
        return None
    return TableData(
        ["method", "round", f"of {by_family[0][1].total} rounds", "speed-up"],
        [
            cells(
                metrics.name_of(family),
                value.round or "not reached",
                "-" if value.share is None else f"{100 * value.share:.0f} %",
                value.speedup_text or "-",
            )
            for family, value in by_family
        ],
        "First evaluated round in which the mean over the seeds reaches "
        f"{metrics.goal(study)}. The speed-up is relative to the rounds of the reference.",
    )


def unused_replies_table(study: Study) -> TableData:
    """Return the clients whose replies were not used, the most frequent first, and void rounds."""
    rows: list[tuple[int, list[Cell]]] = []
    for family in study.families:
        for run in family.runs if not family.personal else ():
            rows += _unused_replies(metrics.name_of(family), run)
    rows.sort(key=lambda row: -row[0])
    more = len(rows) - MOST_UNUSED
    return TableData(
        ["client", "method", "seed", "times", "last round", "last reason"],
        [row for _, row in rows[:MOST_UNUSED]],
        f"{more} more are not shown." if more > 0 else "",
        look="reasons",
    )


def _unused_replies(name: str, run: RunData) -> list[tuple[int, list[Cell]]]:
    seen: dict[Cell, list[tuple[int, str]]] = {}
    for record in run.records:
        if record.void:
            seen.setdefault(Cell("void round", "em"), []).append((record.round, record.void))
        for client, reason in record.dropped.items():
            seen.setdefault(Cell(client), []).append((record.round, reason))
    seed = "-" if run.seed is None else run.seed
    return [
        (len(times), cells(client, name, seed, len(times), *times[-1]))
        for client, times in seen.items()
    ]
