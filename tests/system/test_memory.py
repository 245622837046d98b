"""Memory does not grow over many rounds.

In other systems it grew every round: https://github.com/flwrlabs/flower/issues/2167.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.system.conftest import SMALL

ROUNDS, CLIENTS, WARM = 200, 20, 20
PER_ROUND = 0.2  # MB that the process may grow by

# A run in a process of its own, which measures its own memory at the end of each round.
DRIVER = """
import json, sys
import psutil
from common.config import parse
from deploy.engines.inline import InlineGrid
from client_app.app import app
from server_app import app as server
from server_app.run_dir.run_dir import RunDir

process, sizes = psutil.Process(), []

class Weighed(RunDir):
    def save_record(self, record):
        super().save_record(record)
        sizes.append(process.memory_info().rss)

server.RunDir = Weighed
config = parse(json.loads(sys.argv[1]))
grid = InlineGrid(app, config.clients, config.to_flat(), workers=1)
server.run(grid, config)
grid.close()
print(json.dumps(sizes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedpcd", "scaffold"])
def test_memory_does_not_grow_over_200_rounds_of_20_clients(method: str, tmp_path: Path) -> None:
    settings = {
        **SMALL,
        "method": method,
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "server.checkpoint-every": 20,
        "train.batch-size": 128,
        "out": str(tmp_path),
        "name": "run",
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(settings)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = np.array(json.loads(done.stdout.splitlines()[-1])) / 1e6
    assert len(sizes) == ROUNDS
    slope = np.polyfit(np.arange(WARM, ROUNDS), sizes[WARM:], 1)[0]
    assert slope < PER_ROUND, f"{slope:.3f} MB a round: {sizes[::20].round(1)}"
