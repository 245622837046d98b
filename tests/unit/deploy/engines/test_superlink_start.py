"""A run that no app process takes ends at its deadline, with the reason.

It hung behind a company's proxy, as in https://github.com/grpc/grpc/issues/15942.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from common.config import parse
from deploy.engines.base import Resources
from deploy.engines.superlink import START_SECONDS, SuperLinkJob


class Link:
    """A SuperLink that accepts a run which no app process takes."""

    address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.commands: list[str] = []

    def flwr(self, command: str, *arguments: str) -> dict[str, Any]:
        self.commands.append(command)
        return {"run-id": "7", "runs": [{"status": "pending", "status-details": ""}]}


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_no_app_process_takes_ends_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr("deploy.engines.superlink.app_folder", lambda home: home)
    settings = {"server.start-timeout": 10.0, "server.quorum": 1, "name": "r", "out": str(tmp_path)}
    config = parse({**settings, "names": "a", "clients": 1})
    link = Link()
    monkeypatch.setattr(
        "deploy.engines.superlink.enrolled_clients", lambda _: [type("One", (), {"name": "a"})]
    )
    job = SuperLinkJob(config, Resources(0, link=link))  # type: ignore[arg-type]
    (tmp_path / "r").mkdir()
    job._begun = time.time() - 10.0 - START_SECONDS + (-1.0 if late else 5.0)
    assert job.is_alive() is not late
    assert link.commands == ["run", "ls", *(["stop"] if late else [])]
    if late:
        assert f"no ServerApp started within {10 + START_SECONDS:g} s" in job.why_it_ended()
        assert "app-process.log" in job.why_it_ended()
