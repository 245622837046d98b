"""A client that fails costs itself the round; when all fail, the run says why and stops."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp import ClientApp

from client_app.app import app
from common.config import parse
from common.errors import AggregationError, ClientError
from common.runs.outcome import read_outcome
from common.runs.records import read_records
from common.wire.content import CONFIG
from common.wire.messages import ROUND
from deploy.engines.inline import InlineGrid
from server_app.app import run
from tests.integration.conftest import SMALL, Runner

Breaks = Callable[[int, int], bool]


class Breaking(ClientApp):
    """The real clients, some of which raise when they are asked to train."""

    def __init__(self, breaks: Breaks) -> None:
        super().__init__()
        self.breaks = breaks

    def __call__(self, message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        config = message.content.config_records.get(CONFIG, ConfigRecord())
        number = config.get(ROUND)
        trains = message.metadata.message_type == MessageType.TRAIN
        if trains and isinstance(number, int) and self.breaks(number, partition):
            raise RuntimeError(f"client {partition} has had enough")
        return app(message, context)


def run_with(breaks: Breaks, out: Path, settings: Mapping[str, Any]) -> None:
    """Run SMALL with clients that break."""
    config = parse({**SMALL, "participation": 1.0, "out": str(out), "name": "run", **settings})
    grid = InlineGrid(Breaking(breaks), config.clients, config.to_flat(), workers=2)
    try:
        run(grid, config)
    finally:
        grid.close()


@pytest.mark.parametrize("method", ["fedavg", "fedpcd", "fedpvr"])
def test_a_client_that_raises_is_named_and_back_in_the_next_round(
    method: str, tmp_path: Path
) -> None:
    run_with(lambda number, client: (number, client) == (2, 3), tmp_path, {"method": method})
    before, bad, after = read_records(tmp_path / "run")
    everybody = {str(client) for client in range(6)}
    assert set(before.replied) == set(after.replied) == everybody
    assert set(bad.replied) == everybody - {"3"}
    assert bad.dropped == {
        "3": "its ClientApp raised an error: RuntimeError: client 3 has had enough"
    }


def test_the_other_clients_make_the_model_that_they_would_make_alone(tmp_path: Path) -> None:
    """Round 1 without client 3 is the mean of the five others, not one with a hole in it."""
    settings = {"method": "fedavg", "fedavg.uniform": True, "rounds": 1}
    run_with(lambda _, client: client == 3, tmp_path / "missing", settings)
    alone = []
    for lonely in (0, 1, 2, 4, 5):
        run_with(lambda _, client, one=lonely: client != one, tmp_path / str(lonely), settings)
        alone.append(model_in(tmp_path / str(lonely)))
    assert abs(model_in(tmp_path / "missing") - np.mean(alone, axis=0)).max() < 1e-6


def test_below_the_minimum_a_round_is_void_and_changes_nothing(tmp_path: Path) -> None:
    settings = {"method": "fedavg", "rounds": 2, "server.min-replies": 6}
    run_with(lambda number, client: (number, client) == (2, 0), tmp_path / "void", settings)
    run_with(lambda number, client: False, tmp_path / "one", {**settings, "rounds": 1})
    assert (model_in(tmp_path / "void") == model_in(tmp_path / "one")).all()
    first, second = read_records(tmp_path / "void" / "run")
    assert first.void is None
    assert second.void is not None
    assert "5 of 6 replies usable, 6 needed" in second.void


def test_when_all_clients_fail_the_run_stops_after_the_agreed_number_of_rounds(
    tmp_path: Path,
) -> None:
    settings = {"rounds": 30, "server.max-void-rounds": 2}
    with pytest.raises(AggregationError, match="2 void rounds in a row"):
        run_with(lambda number, client: True, tmp_path, settings)
    outcome = read_outcome(tmp_path / "run")
    assert outcome is not None
    assert (outcome.status, outcome.rounds) == ("failed", 0)
    assert "client 0 has had enough" in outcome.message


def test_a_loss_that_explodes_ends_as_a_sentence_about_the_learning_rate(
    carried_out: Runner,
) -> None:
    ran = carried_out("boom", {"train.lr": 1e30, "rounds": 30, "train.epochs": 5})
    assert ran.outcome.status == "failed"
    assert "3 void rounds in a row" in ran.outcome.message
    assert "lower train.lr" in ran.outcome.message
    assert ran.weights == ""


def test_a_client_without_the_gpu_it_was_told_to_use_ends_the_run_before_round_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client checks for its GPU itself, because the server cannot.

    A GPU was silently not used in https://github.com/flwrlabs/flower/issues/6220.
    """
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = parse({**SMALL, "train.device": "cuda", "out": str(tmp_path), "name": "run"})
    grid = InlineGrid(app, config.clients, config.to_flat(), workers=1)
    with pytest.raises(ClientError, match=r"6 of 6 clients cannot take part.*sees no GPU"):
        run(grid, config)
    grid.close()
    assert read_records(tmp_path / "run") == []


def test_a_data_set_that_is_not_there_is_asked_for_by_name_and_place(
    carried_out: Runner, tmp_path: Path
) -> None:
    settings = {"data.name": "cifar10", "data.root": str(tmp_path / "none"), "data.download": False}
    ran = carried_out("run", settings)
    assert ran.outcome.status == "failed"
    assert f"into {tmp_path / 'none'}" in ran.outcome.message
    assert carried_out("run").outcome.status == "completed"  # under the same name


def model_in(out: Path) -> Any:
    """The final model of the run in this folder, as one vector."""
    with np.load(out / "run" / "weights.npz") as arrays:
        return np.concatenate([arrays[name].ravel() for name in sorted(arrays.files)])
