"""Clients with few samples or none do not break a run.

They broke the evaluation in https://github.com/TsingZ0/PFLlib/issues/246.
"""

import json
from math import isfinite

import numpy as np
import pytest

import client_app.client_data
from common.config_groups import DataConfig
from common.data import Split, load
from common.runs.client_scores import NO_EXAMPLES
from tests.integration.conftest import Ran, Runner

SIZES = {"0": (1, 0), "1": (2, 1), "2": (5, 1), "3": (0, 0), "4": (0, 5), "5": (60, 20)}
WITHOUT_TRAINING, WITHOUT_TEST = {"3", "4"}, {"0", "3"}


def splits(config: DataConfig, clients: int, seed: int) -> list[Split]:
    """Deal SIZES: all small clients have one class only, the last one has all."""
    labels = load("digits").labels
    one_class, others = np.flatnonzero(labels == 7), np.flatnonzero(labels != 7)
    dealt = []
    for train, test in SIZES.values():
        pool = others if train > 10 else one_class
        parts = np.split(pool[: train + test], [train])
        dealt.append(Split(train=parts[0], test=parts[1], calibration=np.array([], np.int64)))
    return dealt


@pytest.fixture(params=["fedavg", "fedpcd", "fedpvr"])
def ran(
    request: pytest.FixtureRequest, carried_out: Runner, monkeypatch: pytest.MonkeyPatch
) -> Ran:
    monkeypatch.setattr(client_app.client_data, "splits_of", splits)
    settings = {"method": request.param, "participation": 1.0, "rounds": 2, "eval-every": 1}
    return carried_out("tiny", settings)


def test_the_run_ends_normally_and_says_who_could_not_train(ran: Ran) -> None:
    assert (ran.outcome.status, ran.outcome.rounds) == ("completed", 2)
    for record in ran.records:
        assert set(record.replied) == SIZES.keys() - WITHOUT_TRAINING
        assert record.dropped.keys() == WITHOUT_TRAINING
        assert all("nothing to train on" in reason for reason in record.dropped.values())
        assert record.train_loss is not None
        assert isfinite(record.train_loss)


def test_clients_without_test_samples_are_listed_and_count_for_nothing(ran: Ran) -> None:
    for record in ran.records:
        assert record.evaluation is not None
        assert record.evaluation.clients.keys() == SIZES.keys() - WITHOUT_TEST
        assert record.evaluation.absent == dict.fromkeys(sorted(WITHOUT_TEST), NO_EXAMPLES)
        assert record.evaluation.fairness is not None
        assert record.evaluation.fairness.clients == 4
        contributors = [score.examples for score in record.evaluation.clients.values()]
        assert sorted(contributors) == [1, 1, 5, 20]
        assert record.evaluation.loss is not None


def test_no_number_in_the_records_is_undefined(ran: Ran) -> None:
    def refuse(name: str) -> None:
        pytest.fail(f"{name} in the records")

    for line in (ran.folder / "records.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    with np.load(ran.folder / "weights.npz") as model:
        assert all(np.isfinite(model[name]).all() for name in model.files)
