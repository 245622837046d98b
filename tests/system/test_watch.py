"""`fedkeel watch` in a browser: the page follows a run and keeps the reader's changes."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from common.config import parse
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.records import RECORDS, Recorder, RoundRecord
from server_app.run_dir.run_dir import RunDir
from tests.browser import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Start a watch of `tmp_path`; yield its address and its process."""
    command = [sys.executable, "-m", "deploy.cli.main", "watch", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(r"(http://127\.0\.0\.1:\d+/) shows ", line)
            assert found, line
            yield found[1], process
        finally:
            process.kill()


def note(folder: RunDir, number: int, right: int) -> None:
    evaluation = Evaluation.of({"north": ClientScore(10, right, 5.0)}, {})
    record = RoundRecord(number, 0.1, ["north"], ["north"], evaluation=evaluation)
    Recorder(folder.path / RECORDS).append(record)


def test_the_page_follows_a_run_and_keeps_the_readers_changes(
    watched: tuple[str, "subprocess.Popen[str]"], chromium: "Browser", tmp_path: Path
) -> None:
    address, process = watched
    with chromium.new_context() as context:
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        asked: set[str] = set()
        page.on("request", lambda request: asked.add(request.url.removeprefix(address)))
        page.goto(address)
        page.wait_for_selector("text=There are no runs yet.")
        tau = page.locator('#fk-bend input[type="range"]').first
        tau.fill("0.5")

        folder = RunDir.open(parse({"out": str(tmp_path), "name": "a", "method": "fedavg"}))
        note(folder, 1, 4)
        page.wait_for_selector(".study >> text=40.0")
        note(folder, 2, 7)
        page.wait_for_selector(".study >> text=70.0")
        assert tau.input_value() == "0.5"
        assert said == []
        assert asked == {"", "state"}

        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        page.wait_for_selector("text=no longer served")
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
