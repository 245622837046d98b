"""What is measured of a program that trains."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from bench import trial
from bench.trial import BenchError, Program, Trial, measure
from tests.processes import lives

WRITE = """
import json, subprocess, sys, time
def end(**said):
    with open("rounds.jsonl", "a") as file:
        file.write(json.dumps(said) + "\\n")
def child(code):
    return subprocess.Popen([sys.executable, "-S", "-c", code])
"""
BURN = "import time\nwhile time.process_time() < 0.3: pass"


def program(code: str) -> Program:
    return Program([sys.executable, "-S", "-c", WRITE + dedent(code)])


def test_a_trial_is_what_the_program_wrote(tmp_path: Path) -> None:
    code = """
    time.sleep(0.3)
    for seconds in (0.1, 0.2, 0.3): end(seconds=seconds)
    time.sleep(0.3)
    end(accuracy=0.7)
    """
    done = measure(program(code), tmp_path / "run", 3)
    assert (done.wall, done.accuracy) == ([0.1, 0.2, 0.3], 0.7)
    assert 0.1 < done.start < 10


def test_cpu_of_children_counts_also_when_they_have_ended(tmp_path: Path) -> None:
    code = f"""
    for _ in range(3):
        child({BURN!r}).wait()
        end(seconds=1.0)
        time.sleep(0.2)
    end(accuracy=1.0)
    """
    done = measure(program(code), tmp_path / "run", 3)
    assert len(done.cpu) == 2
    assert all(0.2 < seconds < 1.5 for seconds in done.cpu)


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"code 3 after 1 of 2 rounds(.|\n)*no such thing"):
        measure(program("end(seconds=1)\nprint('no such thing')\nsys.exit(3)"), tmp_path / "a", 2)
    with pytest.raises(BenchError, match="code 0 after 2 of 2 rounds"):  # and no accuracy
        measure(program("end(seconds=1)\nend(seconds=1)"), tmp_path / "b", 2)


def test_a_program_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(BenchError, match="was not done in"):
        measure(program("time.sleep(60)"), tmp_path / "run", 1)


def test_whoever_is_interrupted_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: psutil.Process) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "cpu_seconds", interrupted)  # asked at the first round's end
    code = """
    open("child", "w").write(str(child("import time; time.sleep(60)").pid))
    end(seconds=1)
    time.sleep(60)
    """
    with pytest.raises(KeyboardInterrupt):
        measure(program(code), tmp_path / "run", 1)
    number = int((tmp_path / "run/child").read_text())
    assert not lives(number)


def test_what_others_use_is_no_cpu_of_the_program(tmp_path: Path) -> None:
    code = """
    for _ in range(2):
        time.sleep(0.5)
        end(seconds=1)
    time.sleep(0.1)
    end(accuracy=1)
    """
    burning = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        done = measure(program(code), tmp_path / "run", 2)
    finally:
        burning.kill()
        burning.wait()
    assert done.others > 0.4
    assert sum(done.cpu) < 0.2


def test_neither_the_first_round_counts_nor_the_last() -> None:
    done = Trial(1.0, [9.0, 1.0, 2.0, 9.0], [1.0, 2.0, 9.0], 0.5, 0.0)
    assert done.counted_wall == [1.0, 2.0]
    assert done.counted_cpu == [1.0, 2.0]
