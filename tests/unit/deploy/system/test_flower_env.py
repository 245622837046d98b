"""Runs get the cores that this process may use, and a quiet Flower."""

import os
import subprocess
import sys

import pytest

from common.parallel import usable_cores
from deploy.system.flower_env import QUIET


def test_cores_are_those_that_this_process_may_use() -> None:
    one = next(iter(os.sched_getaffinity(0)))
    code = f"import os; os.sched_setaffinity(0, [{one}])\n"
    code += "from common.parallel import usable_cores; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1
    assert usable_cores() >= 1


def test_a_system_without_affinity_counts_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cores() == 7


def test_flower_neither_phones_home_nor_installs_anything() -> None:
    assert QUIET["FLWR_TELEMETRY_ENABLED"] == QUIET["RAY_USAGE_STATS_ENABLED"] == "0"
    assert QUIET["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert QUIET["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
