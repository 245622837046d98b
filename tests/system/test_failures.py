"""Runs with failing clients and workers on Flower's simulation engine."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.runs.live_state import read_live_state
from deploy.system.flower_env import QUIET
from tests.system.conftest import SMALL, Place, pairs, wait_for

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2]
LONG = {**SMALL, "method": "fedavg", "clients": 6, "train.epochs": 40}  # rounds of a second or two
EVERYBODY = {"0", "1", "2", "3", "4"}

# The real clients, but one of them does something else in each round.
ODD_CLIENTS = """
import json, os, signal, sys
from pathlib import Path

from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp import ClientApp

from client_app.app import app
from common.config import parse
from deploy.engines import Resources


def raises(reply):
    raise RuntimeError("one two three")


def dies(reply):
    os.kill(os.getpid(), signal.SIGKILL)


def adds_a_metric(reply):
    for record in reply.content.metric_records.values():
        record["mood"] = 1.0


def loses_a_tensor(reply):
    for name in list(reply.content.array_records):
        reply.content[name] = ArrayRecord({})


def has_no_metrics(reply):
    for name in list(reply.content.metric_records):
        reply.content[name] = MetricRecord({})


ODD = {2: raises, 3: dies, 4: adds_a_metric, 5: loses_a_tensor, 6: has_no_metrics}


class OddClients(ClientApp):
    def __call__(self, message, context):
        reply = app(message, context)
        order = message.content.config_records.get("config", {})
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 3:
            ODD.get(order["server-round"], lambda reply: None)(reply)
        return reply


def main():
    from deploy.engines.simulation import simulate

    config = parse(json.loads(sys.argv[1]))
    simulate(config, Resources(2), OddClients, Path(os.environ["RAY_TMPDIR"]))
"""


def test_a_failing_client_is_dropped_by_name_and_the_others_are_aggregated(place: Place) -> None:
    """It raises, is killed, or sends a metric too many, a tensor too few, or no metrics.

    One bad client stopped everybody in https://github.com/flwrlabs/flower/issues/4346.
    """
    home = place.temp / "fk-odd"
    home.mkdir()
    extra = {
        **QUIET,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(home)]),
        "RAY_TMPDIR": str(home),
    }
    (home / "odd.py").write_text(ODD_CLIENTS)
    settings = {**SMALL, "clients": 5, "rounds": 7, "name": "odd", "out": str(place.work / "runs")}
    driver = replace(place, work=home, extra=extra)
    done = driver.call(sys.executable, "-c", "from odd import main; main()", json.dumps(settings))
    assert done.returncode == 0, done.stderr[-3000:]
    reasons = {
        2: "RuntimeError: one two three",
        3: "worker process died",
        4: "does not know: ",
        5: "weights",
        6: "num-examples",
    }
    for record in place.records("odd"):
        assert set(record.cohort) == EVERYBODY
        if record.round in reasons:
            assert set(record.replied) == EVERYBODY - {"3"}, record.dropped
            assert record.dropped.keys() == {"3"}
            assert reasons[record.round] in record.dropped["3"]
        else:
            assert set(record.replied) == EVERYBODY, record.dropped


def killed_at_work(place: Place) -> bool:
    """Kill a Ray worker during a client's training, or return False if none trains."""
    for worker in place.training():
        worker.suspend()  # so that it cannot finish between the look and the kill
        live = read_live_state(place.run_dir("killed"))
        trains = live is not None and live.phase == "training"
        if trains and worker.pid in [process.pid for process in place.training()]:
            worker.kill()
            return True
        worker.resume()
    return False


def test_when_a_worker_is_killed_its_client_is_asked_again(place: Place) -> None:
    """The final weights are those of an undisturbed run."""
    settings = pairs({**LONG, "rounds": 4})
    with place.started(
        "fedkeel", "run", *settings, "--workers", "2", "--name", "killed"
    ) as process:
        wait_for(lambda: place.records("killed"))
        wait_for(lambda: killed_at_work(place))
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    records = place.records("killed")
    assert [len(record.replied) for record in records] == [6, 6, 6, 6]
    assert all(record.dropped == {} for record in records)
    [again] = [record.again for record in records if record.again]
    assert 1 <= len(again) <= 2
    place.assert_tidy()
    calm = place.fedkeel("run", *settings, "--engine", "inline", "--name", "calm")
    assert calm.returncode == 0, calm.stderr
    assert place.weights("killed") == place.weights("calm")


def test_a_run_in_which_all_clients_fail_ends_with_the_reason(place: Place) -> None:
    settings = {**SMALL, "train.lr": 1e30, "train.epochs": 5, "rounds": 30}
    done = place.fedkeel(
        *("run", "fedpvr", *pairs(settings), "--set", "server.max-void-rounds=2"),
        *("--name", "bad", "--workers", "2"),
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    outcome = place.outcome("bad")
    assert outcome is not None
    assert (outcome.status, outcome.rounds) == ("failed", 0)
    assert "2 void rounds in a row" in outcome.message
    assert "lower train.lr" in outcome.message
    assert f"fedpvr failed: {outcome.message}" in done.stdout
    place.assert_tidy()
