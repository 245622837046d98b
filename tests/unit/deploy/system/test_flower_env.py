"""Runs get the cores that this process may use, and a quiet Flower."""

import os
import subprocess
import sys

import httpx
import pytest

from common.parallel import usable_cores
from deploy.system.flower_env import QUIET, child_env


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


def test_children_reach_loopback_directly_and_keep_the_hosts_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child that goes through a proxy hangs: https://github.com/grpc/grpc/issues/29718."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example.org, localhost")
    monkeypatch.setenv("no_proxy", "other.example.org")
    names = "inside.example.org,localhost,other.example.org,127.0.0.1,::1,superlink"
    env = child_env("superlink")
    assert env["NO_PROXY"] == env["no_proxy"] == names
    assert QUIET.items() <= env.items()
    monkeypatch.setattr(os, "environ", {**os.environ, **env})
    assert child_env("superlink") == env
    proxied = {str(key.pattern): proxy for key, proxy in httpx.Client()._mounts.items()}
    assert proxied["all://127.0.0.1"] is proxied["all://localhost"] is None
