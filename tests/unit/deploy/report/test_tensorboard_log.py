"""Event files say what the records say, and follow a run while it goes on."""

import sys
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.records import RoundRecord
from deploy.report.run_data import RunData
from deploy.report.tensorboard_log import TensorBoardLog, scalars

pytest.importorskip("tensorboard", reason="event files are an extra: fedkeel[tensorboard]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's own


def record(number: int, right: int) -> RoundRecord:
    evaluation = Evaluation.of({"0": ClientScore(10, right, 5.0)}, {})
    method = {"feasible": True, "cosine": None, "multipliers": {"0": 1.0}, "active": 2}
    return RoundRecord(number, 0.1, ["0"], ["0"], evaluation=evaluation, method=method)


def read(place: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place)).Reload()
    return {
        tag: {event.step: event.value for event in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }


def test_a_run_is_followed_and_no_round_is_told_twice(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    records = tuple(record(number, number) for number in (1, 2, 3))
    for known in (records[:1], records[:1], records):
        log.write([RunData("x", known)], ["x"])
    log.close()
    found = read(tmp_path / "x")["evaluation/mean"]
    assert found == {1: pytest.approx(0.1), 2: pytest.approx(0.2), 3: pytest.approx(0.3)}


def test_a_run_that_went_back_is_told_anew(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    log.write([RunData("x", (record(1, 1), record(2, 2)))], ["x"])
    log.write([RunData("x", (record(1, 9),))], ["x"])
    log.close()
    assert read(tmp_path / "x")["evaluation/mean"] == {1: pytest.approx(0.9)}


def test_what_is_undefined_has_no_event() -> None:
    told = dict(scalars(record(1, 5)))
    assert told["method/active"] == 2
    assert told["method/feasible"] == 1
    assert told["evaluation/jain"] == 1
    assert not {"method/cosine", "method/multipliers", "train/loss"} & told.keys()
    assert "evaluation/mean" not in dict(scalars(RoundRecord(1, 0.1, [], [])))


def test_without_the_package_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        TensorBoardLog(tmp_path)


def test_a_place_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        TensorBoardLog(tmp_path / "file" / "events")
