"""The ServerApp, and both in Flower's simulation engine: WORK LOG WORKERS."""

import json
import sys
from dataclasses import asdict

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from bench.reference.log import Log
from bench.reference.net import Net
from bench.reference.quickstart.client import app as client_app
from bench.reference.quickstart.task import load_test, test
from bench.work import Work

app = ServerApp()
WORK, LOG, WORKERS = Work(**json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3])


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and note the time after each round."""
    log = Log(LOG)

    def note(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        log.end_round() if number else log.begin()
        if number == WORK.rounds:
            net = Net()
            net.load_state_dict(arrays.to_torch_state_dict())
            log.accuracy(test(net, load_test(WORK)))
        return None

    torch.manual_seed(WORK.seed)
    strategy = FedAvg(
        fraction_train=WORK.cohort / WORK.clients,
        fraction_evaluate=0.0,
        min_available_nodes=WORK.clients,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": WORK.lr, "work": json.dumps(asdict(WORK))}),
        num_rounds=WORK.rounds,
        evaluate_fn=note,
    )


run_simulation(
    app,
    client_app,
    num_supernodes=WORK.clients,
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": WORKERS},
    },
)
