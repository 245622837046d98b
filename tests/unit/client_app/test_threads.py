"""Waiting threads leave the cores to other clients, unless whoever starts the process objects."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_client_says_so_before_torch_is_loaded(given: str | None, expected: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = "import client_app, os, sys; print(os.environ['OMP_WAIT_POLICY'], *sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env=env | ({"OMP_WAIT_POLICY": given} if given else {}),
    )  # fmt: skip
    policy, *modules = told.stdout.split()
    assert policy == expected
    assert "torch" not in modules
