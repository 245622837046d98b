"""The walk of docs/operator.md from nothing to three nodes, run as it is written there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.rng import stream
from common.runs.outcome import read_outcome
from common.runs.records import read_records

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"<!-- walk: (.+?) -->\n```\w+\n(.*?)```", re.DOTALL)
WARDS = {"ward-a": ("cat", "dog"), "ward-b": ("dog", "zebra"), "ward-c": ("cat", "zebra")}
COLOURS = {"cat": (200, 60, 60), "dog": (60, 200, 60), "zebra": (60, 60, 200)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None,
        reason="NGINX IS NOT INSTALLED (apt-get install nginx-light)",
    ),
]


def draw_pictures(folder: Path) -> None:
    """Write three clients' pictures: 20 of each class, noisy squares of its colour."""
    for ward, classes in WARDS.items():
        for name in classes:
            (folder / ward / name).mkdir(parents=True)
            rng = stream(0, "pictures", ward, name)
            for number in range(20):
                noise = rng.normal(0, 30, (40, 40, 3))
                pixels = np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / ward / name / f"{number}.png")


def own_network() -> list[str]:
    """Return the words that run a command in its own network; [] if that is not allowed."""
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    can = shutil.which("unshare") and shutil.which("ip")
    tried = can and subprocess.run([*alone, "true"], capture_output=True, check=False)
    return alone if tried and tried.returncode == 0 else []


def test_the_walk_from_nothing_to_three_nodes_trains_as_written(tmp_path: Path) -> None:
    text = (ROOT / "docs/operator.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    scripts = [body for kind, body in blocks if kind == "run"]
    files = {kind: body for kind, body in blocks if kind != "run"}
    assert len(scripts) >= 6
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    for name, body in files.items():
        (work / name).write_text(body)
    draw_pictures(work / "pictures")
    kept = ("FLWR_", "RAY_", "FEDKEEL_", "PYTHON")
    env = {key: value for key, value in os.environ.items() if not key.startswith(kept)}
    env |= {"HOME": str(home), "PATH": f"{BIN}{os.pathsep}{env['PATH']}:/usr/sbin"}
    script = "set -e\ntrap 'kill $(jobs -p)' EXIT\n" + "\n".join(scripts)
    try:
        done = subprocess.run(
            [*own_network(), "bash", "-c", script],
            cwd=work,
            env=env,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        told = done.stdout + done.stderr
        code = done.returncode
    except subprocess.TimeoutExpired as error:
        told, code = f"{error.stdout!r} {error.stderr!r}", -1
    logs = "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(work.glob("*.log")))
    assert code == 0, f"{told}\n{logs}"

    outcome = read_outcome(work / "runs/first")
    assert outcome is not None
    assert outcome.status == "completed", f"{told}\n{logs}"
    records = read_records(work / "runs/first")
    replied = [len(record.replied) for record in records]
    assert replied[0] >= 2, "two are a quorum, and the run does not wait for the third"
    assert replied[1:] == [3, 3, 3], logs
    assert records[-1].evaluation is not None
    assert records[-1].evaluation.clients.keys() == WARDS.keys()
    assert "first: completed after 4 rounds" in told
    listed = told[told.index("first: completed") :]
    assert "ward-a" in listed
    assert "Ready to take part." in logs
    assert (home / ".fedkeel/ward-a").stat().st_mode & 0o777 == 0o600
    assert "10.0.0.5" in told
