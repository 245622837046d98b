"""Coverage and size of the prediction sets of a family, over its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.runs.conformal_results import ConformalResults, Level, read_conformal
from common.runs.json_file import RecordError
from common.statistics import SeedSummary, summarise_seeds
from deploy.report.run_groups import Family


@dataclass(frozen=True)
class SetCoverage:
    """Coverage and size of the sets of one score at one level, as mean and range over seeds.

    Attributes:
        miscoverage: the level.
        coverage: share of the sets that contain the true label.
        size: mean number of labels in a set.
    """

    miscoverage: float
    coverage: SeedSummary
    size: SeedSummary


def conformal_by_seed(family: Family) -> dict[int | None, ConformalResults]:
    """Return the prediction sets of each seed that has some."""
    results = {}
    for run in family.runs if not family.personal else ():
        try:
            sets = read_conformal(run.path) if run.path else None
        except RecordError:
            continue
        if sets and sets.scores:
            results[run.seed] = sets
    return results


def curve_of(results: Sequence[ConformalResults], score: str) -> list[SetCoverage]:
    """Return the sets of a score at the levels that all seeds measured, in ascending order."""
    tables = [
        {one.miscoverage: one for one in sets.scores.get(score, ()) if one.coverage is not None}
        for sets in results
    ]
    shared = sorted(set.intersection(*map(set, tables))) if tables else []
    rows = [_over_seeds(level, [table[level] for table in tables]) for level in shared]
    return [row for row in rows if row]


def chosen(results: Sequence[ConformalResults], score: str) -> SetCoverage | None:
    """Return the sets at the configured level, None if the levels of the seeds differ."""
    wanted = {sets.miscoverage for sets in results}
    if len(wanted) != 1:
        return None
    (level,) = wanted
    return next((row for row in curve_of(results, score) if row.miscoverage == level), None)


def first_choice(results: Sequence[ConformalResults]) -> SeedSummary | None:
    """Return the top-1 accuracy."""
    return summarise_seeds(sets.accuracy for sets in results)


def numbers_of(family: Family) -> dict[str, Any] | None:
    """Return the sets at the configured level as JSON values by score, None without any."""
    results = list(conformal_by_seed(family).values())
    rows = {score: chosen(results, score) for score in (results[0].scores if results else ())}
    return {score: row and _plain(row) for score, row in rows.items()} or None


def _plain(row: SetCoverage) -> dict[str, Any]:
    return {
        "miscoverage": row.miscoverage,
        "coverage": vars(row.coverage),
        "mean_size": vars(row.size),
    }


def _over_seeds(level: float, rows: Sequence[Level]) -> SetCoverage | None:
    coverage = summarise_seeds(row.coverage for row in rows)
    size = summarise_seeds(row.mean_size for row in rows)
    return SetCoverage(level, coverage, size) if coverage and size else None
