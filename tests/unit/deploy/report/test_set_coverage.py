"""Prediction sets over seeds: means of what the seeds say, and nothing where they do not agree."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.config import parse
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.conformal_results import ConformalResults, Level, write_conformal
from common.runs.records import RoundRecord
from deploy.report.html import diagnostic_tables
from deploy.report.run_data import RunData
from deploy.report.run_groups import Study, group_runs
from deploy.report.set_coverage import chosen, conformal_by_seed, curve_of, first_choice, numbers_of

SETTINGS = parse({}).conformal.to_table()
EVALUATED = RoundRecord(
    1, 0.1, [], [], evaluation=Evaluation.of({"0": ClientScore(9, 5, None)}, {})
)


def level(miscoverage: float, coverage: float | None, size: float | None) -> Level:
    return Level(miscoverage, 9, 0.5, 100, coverage, size, [0, 60, 40], [None, 0.8, 0.9])


def sets(*coverages: float | None, sizes: tuple[float, ...] = (1.0, 2.0)) -> ConformalResults:
    """LAC alone, at 0.2 and at 0.1, which is the configured level."""
    rows = [level(m, c, s) for m, c, s in zip((0.2, 0.1), coverages, sizes, strict=True)]
    scores = {"lac": sorted(rows, key=lambda row: row.miscoverage)}
    return ConformalResults(1, SETTINGS, 2, 9, 50, accuracy=coverages[0], scores=scores)


def study(place: Path, *found: ConformalResults) -> Study:
    runs = []
    for seed, one in enumerate(found, start=1):
        path = place / str(seed)
        path.mkdir(parents=True)
        write_conformal(path, one)
        runs.append(RunData("x", (EVALUATED,), parse({"seed": seed}).to_flat(), path))
    (only,) = group_runs(runs)
    return only


def test_numbers_are_means_over_the_seeds_with_their_range(tmp_path: Path) -> None:
    both = study(tmp_path, sets(0.8, 0.88), sets(0.7, 0.92, sizes=(1.5, 3.0)))
    found = list(conformal_by_seed(both.families[0]).values())
    at = chosen(found, "lac")
    assert at is not None
    assert (at.miscoverage, at.coverage.mean) == (0.1, pytest.approx(0.90))
    assert (at.coverage.low, at.coverage.high, at.size.mean) == (0.88, 0.92, 2.5)
    assert [row.miscoverage for row in curve_of(found, "lac")] == [0.1, 0.2]
    alone = first_choice(found)
    assert alone is not None
    assert alone.mean == pytest.approx(0.75)
    assert chosen(found, "aps") is None
    told = numbers_of(both.families[0])
    assert told is not None
    assert told["lac"]["coverage"]["seeds"] == 2


def test_a_level_that_one_seed_could_not_measure_is_left_out(tmp_path: Path) -> None:
    found = [sets(0.8, None), sets(0.7, 0.9)]
    assert [row.miscoverage for row in curve_of(found, "lac")] == [0.2]
    assert chosen(found, "lac") is None


def test_seeds_with_other_promises_are_not_mixed() -> None:
    other = replace(sets(0.8, 0.9), settings={**SETTINGS, "miscoverage": 0.2})
    assert chosen([sets(0.8, 0.9), other], "lac") is None
    assert chosen([], "lac") is None
    assert curve_of([], "lac") == []


def test_runs_without_sets_have_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    run = RunData("x", (EVALUATED,), parse({}).to_flat(), tmp_path / "1")
    (only,) = group_runs([run])
    assert conformal_by_seed(only.families[0]) == {}
    assert numbers_of(only.families[0]) is None
    assert not diagnostic_tables.prediction_sets(only).table


def test_table_shows_coverage_and_size_for_each_score(tmp_path: Path) -> None:
    both = study(tmp_path, sets(0.8, 0.88), sets(0.7, 0.92, sizes=(1.5, 3.0)))
    table = diagnostic_tables.prediction_sets(both).table
    assert table is not None
    assert "promised coverage of 90 %" in table.note
    ((_, top1, lac, *_),) = table.rows
    assert top1.text == "75.0 %"
    assert (lac.text, lac.small) == ("90.0 %, 2.50 labels", "88.0 to 92.0, 2.00 to 3.00")
