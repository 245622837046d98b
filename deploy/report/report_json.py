"""All numbers of a report as JSON values. Undefined numbers are null."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.io.files import atomic_write
from common.runs.json_file import json_values
from common.statistics import STATISTICS, SeedSummary
from deploy.report import metrics, set_coverage
from deploy.report.columns import FAMILY_COLUMNS
from deploy.report.fallback import with_fallback
from deploy.report.run_data import RunData
from deploy.report.run_groups import Family, Study, Targets, group_runs


def numbers_of(
    runs: Sequence[RunData], left_out: Mapping[str, str], targets: Targets | None = None
) -> dict[str, Any]:
    """Return all numbers of a report.

    Args:
        runs: as returned by `discover`.
        left_out: why a run could not be read, by its directory.
        targets: see `studies`.
    """
    numbers = [_study_or_problem(study) for study in group_runs(runs, targets)]
    return {"studies": numbers, "left_out": json_values(left_out, "left_out")}


def write_numbers(
    path: Path,
    runs: Sequence[RunData],
    left_out: Mapping[str, str],
    targets: Targets | None = None,
) -> None:
    """Write the numbers to a JSON file, atomically."""
    text = json.dumps(numbers_of(runs, left_out, targets), allow_nan=False, indent=1) + "\n"
    with atomic_write(path) as file:
        file.write(text.encode())


def _study_or_problem(study: Study) -> dict[str, Any]:
    """Return the numbers of a study, or its runs and the error message."""
    folders = [str(run.path or run.label) for run in study.runs]
    return with_fallback(
        f"{study.title or 'The study'} in numbers",
        lambda: dict(json_values(_study(study), "study")),
        lambda why: {"title": study.title, "problem": why, "runs": folders, "families": []},
    )


def _study(study: Study) -> dict[str, Any]:
    base = metrics.reference(study)
    reached = {id(family): asdict(value) for family, value in metrics.reached(study)}
    differences = {
        name: {id(family): asdict(value) for family, value in metrics.differences(study, name)}
        for name in STATISTICS
    }
    return {
        "title": study.title,
        "task": _settings(study.task),
        "reference": metrics.name_of(base) if base else None,
        "families": [
            {
                **_family(family),
                "reached_reference": reached.get(id(family)),
                "difference_to_reference": {
                    name: by_family.get(id(family)) for name, by_family in differences.items()
                },
            }
            for family in study.families
        ],
    }


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON values. Other types, such as dates, become text."""
    return dict(json.loads(json.dumps(dict(settings), default=str)))


def _family(family: Family) -> dict[str, Any]:
    return {
        "name": metrics.name_of(family),
        "method": family.method,
        "personal": family.personal,
        "settings": _settings(family.settings),
        "round": metrics.last_round(family),
        **{column.key: _over_seeds(column.of_family(family)) for column in FAMILY_COLUMNS},
        "prediction_sets": set_coverage.numbers_of(family),
        "curve": [[number, asdict(value)] for number, value in metrics.curve(family)],
        "runs": [_run(run) for run in family.runs],
    }


def _over_seeds(value: SeedSummary | None) -> dict[str, Any] | None:
    return asdict(value) if value else None


def _run(run: RunData) -> dict[str, Any]:
    dropped: dict[str, int] = {}
    for record in run.records:
        for client in record.dropped:
            dropped[client] = dropped.get(client, 0) + 1
    last = run.last_evaluation
    return {
        "folder": run.path and str(run.path),
        "seed": run.seed,
        "rounds": run.rounds,
        "void_rounds": [record.round for record in run.records if record.void],
        "dropped": dropped,
        "evaluated_round": last and last[0],
        "fairness": last and last[1].fairness and asdict(last[1].fairness),
        "clients": run.accuracies,
        "absent": dict(last[1].absent) if last else {},
    }
