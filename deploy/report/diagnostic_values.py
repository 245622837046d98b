"""Read diagnostics from records. A value of the wrong type counts as missing."""

from collections.abc import Mapping
from statistics import fmean
from sys import float_info
from typing import Any

from common.runs.class_counts import ClassCounts, read_class_counts
from common.statistics import SeedSummary, summarise_seeds
from deploy.report.run_data import RunData
from deploy.report.run_groups import Family, Study

Diagnostics = Mapping[str, Any]
LARGEST = float_info.max


def diagnosed(run: RunData, part: str) -> list[tuple[int, Diagnostics]]:
    """Return (round, diagnostics) of the rounds that have this part."""
    return [(r.round, r.diagnostics) for r in run.records if table_in(r.diagnostics, part)]


def at(value: object, *keys: str) -> Any:
    """Return the JSON value under these keys, None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def table_in(parent: object, *keys: str) -> Mapping[str, Any]:
    """Return the object under these keys, {} if there is none."""
    value = at(parent, *keys)
    return value if isinstance(value, Mapping) else {}


def numbers_in(parent: object, *keys: str) -> dict[str, float | None]:
    """Return the values of the object under these keys. None replaces a value that is no number."""
    return {name: _number(value) for name, value in table_in(parent, *keys).items()}


def number_in(parent: object, *keys: str) -> float | None:
    """Return the number under these keys, None if there is none."""
    return _number(at(parent, *keys))


def last_diagnosed(family: Family, part: str) -> list[Diagnostics]:
    """Return the last diagnostics with this part, for each seed that has any."""
    by_run = [diagnosed(run, part) for run in family.runs if not family.personal]
    return [rounds[-1][1] for rounds in by_run if rounds]


def over_rounds(family: Family, part: str, *keys: str) -> list[tuple[int, SeedSummary]]:
    """Return (round, mean and range over seeds) of a number in a part of the diagnostics."""
    tables = [
        {
            number: number_in(diagnostics, part, *keys)
            for number, diagnostics in diagnosed(run, part)
        }
        for run in family.runs
        if not family.personal
    ]
    return _by_round(tables)


def mean_over_rounds(family: Family, part: str, *keys: str) -> SeedSummary | None:
    """Return the mean over the diagnosed rounds, as mean and range over the seeds."""
    means = []
    for run in family.runs if not family.personal else ():
        values = (number_in(each, part, *keys) for _, each in diagnosed(run, part))
        known = [value for value in values if value is not None]
        means.append(fmean(known) if known else None)
    return summarise_seeds(means)


def of_rounds(family: Family, key: str) -> list[tuple[int, SeedSummary]]:
    """Return (round, mean and range over seeds) of a number reported by the method."""
    tables = [
        {r.round: _number(r.method.get(key)) for r in run.records}
        for run in family.runs
        if not family.personal
    ]
    return _by_round(tables)


def _by_round(tables: list[dict[int, float | None]]) -> list[tuple[int, SeedSummary]]:
    rounds = sorted({number for table in tables for number in table})
    pairs = [(number, summarise_seeds(table.get(number) for table in tables)) for number in rounds]
    return [(number, value) for number, value in pairs if value]


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and -LARGEST <= value <= LARGEST:  # false for NaN
        return float(value)
    return None


def step_cosines(family: Family) -> list[tuple[int, float]]:
    """Return (round, cosine of the step with an update) of all clients and seeds."""
    if family.personal:
        return []
    return [
        (number, cosine)
        for run in family.runs
        for number, diagnostics in diagnosed(run, "cosine")
        for cosine in numbers_in(diagnostics, "cosine").values()
        if cosine is not None
    ]


def partition_of(study: Study) -> ClassCounts | None:
    """Return the class counts of the clients, from the first run that has them."""
    counts = (read_class_counts(run.path) for run in study.runs if run.path)
    return next((each for each in counts if each), None)
