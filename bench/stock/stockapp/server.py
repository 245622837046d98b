"""Flower's own FedAvg and its own loop, with the time after each round."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; the file `out` gets the seconds since 1970 at the end of each."""
    config = context.run_config
    shapes = [tuple(map(int, shape.split("x"))) for shape in str(config["shapes"]).split(",")]
    arrays = ArrayRecord(
        {f"layer{k}": Array(np.zeros(shape, np.float32)) for k, shape in enumerate(shapes)}
    )
    clients = int(config["clients"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    ends = []

    def note(_: int, __: ArrayRecord) -> None:
        ends.append(time.time())

    strategy.start(
        grid=grid, initial_arrays=arrays, num_rounds=int(config["rounds"]), evaluate_fn=note
    )
    Path(str(config["out"])).write_text(json.dumps(ends))
