"""Benchmarks refuse at once, show what they have when they are stopped, and leave nothing."""

import importlib
import json
import os
import signal
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from types import ModuleType

import pytest

from bench.command import TEMPORARY, at_least, keep, writable
from tests.processes import lives

BENCHMARKS = ("gpu", "half", "memory", "methods", "round", "scale", "server", "wire")

# Starts a child and an orphan, makes a temporary file, and then waits or ends as it is told.
PROGRAM = """
import signal, subprocess, sys, tempfile, time
from pathlib import Path
from bench.command import carry_out, keep
from bench.trial import BenchError
signal.signal(signal.SIGINT, signal.default_int_handler)
how, file = sys.argv[1], Path(sys.argv[2])
found = {}
def measure(home):
    found["points"] = 2
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    child = subprocess.Popen(sleeping)
    starts = f"import subprocess; print(subprocess.Popen({sleeping!r}).pid, flush=True)"
    orphan = subprocess.Popen([sys.executable, "-S", "-c", starts], stdout=subprocess.PIPE)
    number = orphan.stdout.readline().decode().strip()
    orphan.wait()
    print(tempfile.mkdtemp(dir=None), child.pid, number, flush=True)
    if how == "wait":
        time.sleep(60)
    if how == "fail":
        raise BenchError("the third point has no result")
def show(why):
    print("table of", found)
    keep(file, why, **found)
carry_out(measure, show)
"""


def started(how: str, file: Path, temp: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, str(file)],
        env={**os.environ, "TMPDIR": str(temp)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("how", "number", "code", "said"),
    [
        ("wait", signal.SIGTERM, 143, "stopped by SIGTERM"),
        ("wait", signal.SIGINT, 130, "stopped by SIGINT"),
        ("fail", None, 1, "an error"),
        ("end", None, 0, None),
    ],
)
def test_however_it_ends_what_there_is_is_shown_and_kept_and_nothing_is_left(
    tmp_path: Path, how: str, number: signal.Signals | None, code: int, said: str | None
) -> None:
    file, temp = tmp_path / "figures.json", tmp_path / "temp"
    temp.mkdir()
    with started(how, file, temp) as process:
        assert process.stdout
        folder, *children = process.stdout.readline().split()
        if number is not None:
            process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    assert "table of {'points': 2}" in out
    assert ("PARTIAL" in out) == (said is not None)
    assert (said or "") in out
    assert ("the third point has no result" in err) == (how == "fail")
    kept = json.loads(file.read_text())
    assert (kept["partial"], kept["points"]) == (said, 2)
    assert TEMPORARY in folder
    assert list(temp.iterdir()) == []
    assert not any(lives(int(child)) for child in children)


def test_a_file_that_cannot_be_written_is_refused_and_one_that_can_stays_as_it_is(
    tmp_path: Path,
) -> None:
    with pytest.raises(ArgumentTypeError, match=f"there is no folder {tmp_path}/none"):
        writable(str(tmp_path / "none/file"))
    with pytest.raises(ArgumentTypeError, match="is no regular file"):
        writable(str(tmp_path))
    with pytest.raises(ArgumentTypeError, match="cannot be written"):
        writable("/proc/figures.json")
    old = tmp_path / "old.json"
    old.write_text("of last week")
    assert writable(str(old)) == old
    assert old.read_text() == "of last week"
    assert writable(str(tmp_path / "new.json")) == tmp_path / "new.json"
    assert list(tmp_path.iterdir()) == [old]


def test_a_file_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "figures.json"
    os.mkfifo(pipe)
    for odd in (pipe, Path("/dev/full")):
        with pytest.raises(ArgumentTypeError, match="is no regular file"):
            writable(str(odd))
    keep(file, None, rows=[1, 2])
    keep(file, "stopped", rows=[])  # nothing was measured: the old ones stay
    keep(file, "stopped", {"of": "this work"}, rows=[])
    assert json.loads(file.read_text())["rows"] == [1, 2]
    with pytest.raises(SystemExit, match="cannot be written"):
        keep(pipe / "none", None, rows=[3])


def test_numbers_that_are_too_small_are_refused() -> None:
    assert at_least(3)("3") == 3
    for text in ("2", "-1", "3.5", "many", ""):
        with pytest.raises(ArgumentTypeError, match=f'at least 3, got "{text}"'):
            at_least(3)(text)


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = importlib.import_module(f"bench.{name}")
    monkeypatch.setattr(module, "carry_out", lambda *_: pytest.fail("it measured"))
    return module


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_refuses_a_file_before_it_measures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    (tmp_path / "file").touch()
    option = "--out" if name == "methods" else "--json"
    monkeypatch.setattr(sys, "argv", [name, option, str(tmp_path / "file/below")])
    with pytest.raises(SystemExit) as ended:
        benchmark(name, monkeypatch).main()
    assert ended.value.code == 2
    assert f"argument {option}: {tmp_path}/file/below cannot be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("round", "--rounds 2", "argument --rounds: expected a whole number of at least 3"),
        ("round", "--repeats 0", "argument --repeats: expected a whole number of at least 1"),
        ("wire", "--models cnn resnet99", "argument --models: invalid choice: 'resnet99'"),
        ("wire", "--rounds 1", "argument --rounds: expected a whole number of at least 2"),
        ("server", "--parameters 10", "argument --parameters: expected a whole number of at least"),
        ("gpu", "--steps 0", "argument --steps: expected a whole number of at least 1"),
        ("half", "/none", "argument RUN: /none is no finished run"),
    ],
)
def test_each_option_has_its_own_refusal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    words: str,
    said: str,
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    with pytest.raises(SystemExit) as ended:
        benchmark(name, monkeypatch).main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
