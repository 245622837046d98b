"""Prediction sets at the end of a run: those of the pooled samples, whoever is asked and when."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.app import app
from client_app.client_data import load_client_data
from client_app.evaluator import logits_of
from common.config import parse
from common.conformal.prediction_sets import (
    SCORES,
    Outputs,
    Tally,
    bin_edges,
    prediction_sets,
    quantile,
    softmax,
)
from common.rng import stream
from common.runs.conformal_results import CONFORMAL, ConformalResults, read_conformal
from common.runs.outcome import read_outcome
from deploy.engines.inline import InlineGrid
from server_app.app import run
from server_app.run_dir.run_dir import WEIGHTS
from tests.integration.conftest import SMALL, Runner

CALIBRATED = {"data.calibration-fraction": 0.25, "data.partition": "dirichlet-client"}


def sets_in(folder: Path) -> ConformalResults:
    sets = read_conformal(folder)
    assert sets is not None
    return sets


def pooled(folder: Path, settings: dict[str, Any], part: str) -> tuple[Outputs, np.ndarray]:
    """What the final model says about all clients' samples, put together."""
    config = parse({**SMALL, **settings})
    found = []
    for partition in range(config.clients):
        place = {"partition-id": partition, "num-partitions": config.clients}
        client = load_client_data(config.to_flat(), place)
        flat = client.flat
        with np.load(folder / WEIGHTS) as arrays:
            flat.load(flat.layout.flatten(dict(arrays)), {})
        indices = getattr(client.split, part)
        u = stream(config.seed, "conformal", part, str(partition)).random(len(indices))
        found.append((logits_of(flat, client.data, indices), u, client.data.labels[indices]))
    logits, draws, labels = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Outputs(softmax(logits), draws, config.conformal.k_reg, config.conformal.lam), labels


@pytest.mark.parametrize("method", ["fedavg", "afl"])  # AFL's model is a mean of several
def test_the_sets_are_those_of_all_samples_in_one_place_up_to_a_bin(
    method: str, carried_out: Runner
) -> None:
    ran = carried_out("run", {**CALIBRATED, "method": method, "afl.average": True})
    sets = sets_in(ran.folder)
    out, labels = pooled(ran.folder, CALIBRATED, "calibration")
    tests, truth = pooled(ran.folder, CALIBRATED, "test")
    assert (sets.examples, sum(sets.test.values())) == (len(labels), len(truth))
    assert sets.accuracy == (tests.top == truth).mean()
    evaluation = ran.records[-1].evaluation
    assert evaluation is not None
    assert evaluation.fairness is not None
    assert sets.accuracy == evaluation.fairness.mean_weighted
    for name, score in SCORES.items():
        true = score(out)[np.arange(len(labels)), labels]
        edges = bin_edges(name, 10, 2000, k_reg=1, lam=0.1)
        for row in sets.scores[name]:
            exact = quantile(true, row.miscoverage)
            q = inf if row.threshold is None else row.threshold
            assert exact <= q <= exact + np.diff(edges).max() + 1e-12
            tally = Tally.of(prediction_sets(score(tests), q, tests.top), truth)
            assert row.sizes == tally.sizes.tolist()
            assert row.coverage_by_size == tally.coverage_by_size


def test_one_worker_several_and_a_resumed_run_give_the_same_sets(carried_out: Runner) -> None:
    alone = carried_out("alone", CALIBRATED)
    many = carried_out("many", CALIBRATED, workers=3)
    early = carried_out("parts", {**CALIBRATED, "rounds": 1})
    assert sets_in(early.folder).round == 1
    parts = carried_out("parts", {**CALIBRATED, "resume": True})
    texts = {(ran.folder / CONFORMAL).read_text() for ran in (alone, many, parts)}
    assert len(texts) == 1
    again = carried_out("parts", {**CALIBRATED, "resume": True})  # there is nothing left to do
    assert again.outcome.status == "completed"
    assert (again.folder / CONFORMAL).read_text() in texts


def test_a_run_that_lacks_nothing_but_its_end_gets_its_sets(carried_out: Runner) -> None:
    ran = carried_out("run", CALIBRATED)
    before = (ran.folder / CONFORMAL).read_text()
    for name in (CONFORMAL, "outcome.json", WEIGHTS):
        (ran.folder / name).unlink()
    again = carried_out("run", {**CALIBRATED, "resume": True})
    assert again.outcome.status == "completed"
    assert (again.folder / CONFORMAL).read_text() == before


class Watched(ClientApp):
    """The real clients, whose messages are counted, and some of which fail."""

    def __init__(self, *failing: tuple[str, int]) -> None:
        super().__init__()
        self.failing = failing
        self.kinds: list[str] = []

    def __call__(self, message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        self.kinds.append(kind)
        if (kind, context.node_config["partition-id"]) in self.failing:
            raise RuntimeError("it has had enough")
        return app(message, context)


def run_with(clients: Watched, out: Path, **settings: Any) -> Path:
    flat = {**SMALL, **CALIBRATED, "rounds": 1, "out": str(out), "name": "run"}
    config = parse({**flat, **settings})
    grid = InlineGrid(clients, config.clients, config.to_flat(), workers=2)
    try:
        run(grid, config)
    finally:
        grid.close()
    outcome = read_outcome(out / "run")
    assert outcome is not None
    assert outcome.status == "completed"
    return out / "run"


def test_without_calibration_samples_nobody_is_asked(tmp_path: Path) -> None:
    clients = Watched()
    folder = run_with(clients, tmp_path, **{"data.calibration-fraction": 0.0})
    assert not (folder / CONFORMAL).exists()
    assert set(clients.kinds) == {"query", "train", "evaluate"}


def test_all_clients_are_asked_twice_whoever_trained(tmp_path: Path) -> None:
    clients = Watched()
    run_with(clients, tmp_path, participation=0.2)
    assert clients.kinds.count("evaluate.calibrate") == clients.kinds.count("evaluate.cover") == 6


def test_a_client_that_fails_is_listed_and_the_rest_goes_on(tmp_path: Path) -> None:
    clients = Watched(("evaluate.calibrate", 1), ("evaluate.cover", 4))
    sets = sets_in(run_with(clients, tmp_path))
    said = "its ClientApp raised an error: RuntimeError: it has had enough"
    assert (sets.uncalibrated, sets.untested) == ({"1": said}, {"4": said})
    assert set(sets.calibration) == set("02345")
    assert set(sets.test) == set("01235")
    assert sets.problem is None


def test_when_all_fail_the_run_is_complete_and_the_reason_is_written(tmp_path: Path) -> None:
    clients = Watched(*(("evaluate.calibrate", client) for client in range(6)))
    folder = run_with(clients, tmp_path)
    assert "client 0: its ClientApp raised an error" in (sets_in(folder).problem or "")
    assert (folder / WEIGHTS).exists()


def test_draws_of_dropout_do_not_reach_the_sets(
    carried_out: Runner, with_dropout: dict[str, Any]
) -> None:
    settings = {**with_dropout, **CALIBRATED, "clients": 3, "rounds": 1}
    one, other = carried_out("one", settings), carried_out("two", settings, workers=2)
    assert (one.folder / CONFORMAL).read_text() == (other.folder / CONFORMAL).read_text()
