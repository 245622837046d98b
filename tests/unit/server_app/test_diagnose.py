"""What the record of a diagnosed round says, and that nothing else changes by it."""

import logging
from typing import Any

import numpy as np
import pytest

from common.config import parse
from common.diagnostics import drift_diversity
from common.errors import DataError
from common.methods import FedAvg
from common.types import Step
from server_app.diagnose import Diagnosis
from server_app.records import RoundRecord
from server_app.state import ServerState
from tests.builders import Federation, cohort_of, layout_of_size

pytestmark = pytest.mark.usefixtures("flower_identity")
SIZE = 12


def diagnosed(deltas: Any, number: int = 1, **settings: Any) -> dict[str, Any]:
    """The diagnostics of a round of FedAvg with these displacements."""
    flat = {f"diagnostics.{key}": value for key, value in ({"every": 1} | settings).items()}
    config = parse({"method": "fedavg", "rounds": 7, **flat})
    cohort = cohort_of(np.asarray(deltas, np.float32), round=number)
    layout = layout_of_size(len(cohort.updates[0].delta))
    before = ServerState.first(layout, np.zeros(layout.size, np.float32), {}, FedAvg())
    step: Step[Any] = FedAvg().aggregate(cohort, before.method, layout)
    return Diagnosis(config, layout)(before, cohort, step)


def test_every_kth_round_and_the_last_are_diagnosed() -> None:
    numbers = [n for n in range(1, 8) if diagnosed(np.eye(3), n, every=3)]
    assert numbers == [3, 6, 7]


def test_drift_is_told_by_layer_and_client() -> None:
    told = diagnosed(np.eye(3))
    assert told["clients"] == ["1", "2", "3"]
    assert told["drift"] == {
        "whole": 1.0,
        "layers": {"features": 1.0, "classifier": 1.0},
        "infinite": [],
        "cancels": False,
    }


def test_what_cancels_is_named_since_json_has_no_infinity() -> None:
    told = diagnosed([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])["drift"]
    assert told["layers"] == {"features": None, "classifier": None}  # still, and cancelled
    assert told["infinite"] == ["classifier"]
    assert told["whole"] is None
    assert told["cancels"]


class Watched(Federation):
    """A federation that diagnoses every round."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(FedAvg(), size=SIZE, **changes)
        config = parse({"method": "fedavg", "diagnostics.every": 1})
        self.strategy.diagnose = Diagnosis(config, self.layout)


def test_the_record_holds_what_a_direct_computation_gives() -> None:
    federation = Watched()
    sent = federation.weights
    orders = federation.strategy.configure_train(1, federation.arrays, {}, federation)  # type: ignore[arg-type]
    deltas = [sent - federation.train_reply(order).weights for order in orders]
    federation.train(1)
    told = federation.record.diagnostics
    expected = drift_diversity(deltas, federation.layout)
    assert told["clients"] == federation.record.replied
    assert told["drift"]["whole"] == pytest.approx(expected.whole, rel=1e-12)
    assert told["drift"]["layers"] == pytest.approx(dict(expected.layers), rel=1e-12)
    again = RoundRecord.from_json(federation.record.to_json())
    assert again.diagnostics == told


def test_a_void_round_has_none_and_old_records_still_read() -> None:
    federation = Watched(min_replies=6)
    federation.train(1)
    assert federation.record.void
    assert federation.record.diagnostics == {}
    line = federation.record.to_json()
    del line["diagnostics"]
    assert RoundRecord.from_json(line).diagnostics == {}


def test_a_diagnosis_that_fails_costs_the_round_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        raise DataError("no pictures")

    plain, watched = Federation(FedAvg(), size=SIZE), Watched()
    watched.strategy.diagnose = fail
    plain.train(1)
    with caplog.at_level(logging.WARNING, "flwr"):
        watched.train(1)
    assert "round 1 has no diagnostics: no pictures" in caplog.text
    assert watched.record.void is None
    assert watched.record.diagnostics == {}
    assert np.array_equal(plain.weights, watched.weights)
