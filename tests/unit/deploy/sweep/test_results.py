"""The table at the end of a sweep fits a terminal, and breaks no method's name."""

import io

import pytest
from rich.console import Console

from common.config import parse
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.records import RoundRecord
from deploy.report.run_data import RunData
from deploy.report.run_groups import group_runs
from deploy.sweep.results import study_table

CLIENTS = 30
MANY = 100_000


def run(method: str, seed: int, last: int) -> RunData:
    """A run whose numbers are as wide as they get: seeds from 96.7 to 100.0 %."""
    right = {str(n): MANY if n or seed > 1 else 0 for n in range(CLIENTS)}
    scores = {client: ClientScore(MANY, number, 1.0) for client, number in right.items()}
    record = RoundRecord(last, 0.1, [], [], evaluation=Evaluation.of(scores, {}))
    config = parse({"method": method, "seed": seed, "rounds": 100})
    return RunData(f"{method}-{seed}", (record,), config.to_flat())


@pytest.mark.parametrize("last", [100, 7])
def test_80_columns_hold_every_name_and_number_whole(last: int) -> None:
    ends = {"fedavg": last, "scaffold": 100, "fedmgda": 100}
    runs = [run(method, seed, end) for method, end in ends.items() for seed in range(1, 11)]
    [study] = group_runs(runs)
    out = io.StringIO()
    Console(file=out, width=80).print(study_table(study))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    starts = [line.split()[0] for line in lines if line.strip()]
    assert [start for start in starts if start in ends] == list(ends)
    assert sum(line.endswith(" 0.97-1.00") for line in lines) == len(ends)
    assert sum("99.67 %" in line and line.endswith(" 0.997") for line in lines) == len(ends)
