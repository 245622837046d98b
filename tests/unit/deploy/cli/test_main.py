"""The fedkeel command, typed in this process: what it says and how it exits."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from common.config import RunConfig
from common.runs.outcome import read_outcome
from common.runs.records import read_records
from deploy.cli.main import main
from deploy.preflight.doctor import Finding

QUICK: Mapping[str, Any] = {
    "clients": 3, "participation": 1.0, "rounds": 2, "data.partition": "iid",
    "train.device": "cpu",
}  # fmt: skip
SETTINGS = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]
INLINE = ("--engine", "inline", *SETTINGS)


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def flat(self) -> str:
        """Everything, without the frames and line breaks that depend on the terminal's width."""
        return " ".join(re.sub(r"[│╭╮╰╯─]", " ", self.out + self.err).split())


Type = Callable[..., Said]


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Type]:
    """Type `fedkeel ...` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    before, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)

    def go(*arguments: str) -> Said:
        monkeypatch.setattr("sys.argv", ["fedkeel", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else int(code is not None), *printed)

    yield go
    os.environ.clear()
    os.environ.update(before)
    signal.signal(signal.SIGTERM, handler)


def test_version(typed: Type) -> None:
    assert typed("--version") == Said(0, f"{version('fedkeel')}\n", "")


def test_settings_lists_every_key_with_its_default(typed: Type, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = typed("settings")
    assert said.code == 0
    rows = {line.split()[0]: line for line in said.out.splitlines() if line.strip()}
    for key, default in RunConfig().to_flat().items():
        assert key in rows
        shown = json.dumps(default) if isinstance(default, bool) else str(default)
        assert shown in rows[key]


def test_settings_of_one_method_come_with_their_ranges(typed: Type, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = typed("settings", "fedfv")
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == [
        "fedfv.alpha", "fedfv.tau", "fedfv.window",
    ]  # fmt: skip
    assert "(in [0, 1])" in said.out
    wrong = typed("settings", "fedfw")
    assert wrong.code == 2
    assert 'no settings are called "fedfw"' in wrong.err


@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
def test_doctor_fails_when_something_must_be_mended(
    verdict: Any, code: int, typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "deploy.preflight.doctor.machine_findings", lambda: [Finding("cpu", verdict, "a sentence")]
    )
    said = typed("doctor")
    assert said.code == code
    assert "a sentence" in said.out


class TestRefused:
    """What cannot be done is said in a sentence, before anything starts."""

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["run", "fedpcb"], "method must be one of "),
            (["compare", "fedavg", "fedpcb"], "method must be one of "),
            (["run", "--set", "train.lrr=1"], 'no key "train.lrr" (did you mean "train.lr"?)'),
            (["run", "--set", "lr"], "--set takes key=value"),
            (["run", "--engine", "warp"], 'there is no engine "warp": simulation or inline'),
            (["run", "--config", "none.toml"], "the config file cannot be read"),
            (["run", "--resume"], "--resume needs the --name of the run"),
            (["run", "--workers", "-1"], "--workers"),
            (["run", "--colour", "red"], "--colour"),
            (["compare"], "Missing argument"),
            (["runn"], "runn"),
        ],
    )
    def test_and_exits_with_2(
        self, arguments: Sequence[str], sentence: str, typed: Type, tmp_path: Path
    ) -> None:
        said = typed(*arguments)
        assert said.code == 2
        assert sentence in said.flat
        assert said.out == ""
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_not_toml(self, typed: Type, tmp_path: Path) -> None:
        (tmp_path / "bad.toml").write_text("rounds = = 3")
        said = typed("run", "--config", "bad.toml")
        assert said.code == 2
        assert "bad.toml is not a TOML file" in said.err

    @pytest.mark.parametrize("knob", [("--set", "train.device=cuda"), ("--client-gpus", "1")])
    @pytest.mark.parametrize("engine", ["inline", "simulation"])
    def test_a_gpu_that_is_not_there(
        self, engine: str, knob: Sequence[str], typed: Type, tmp_path: Path, monkeypatch: Any
    ) -> None:
        """A GPU was silently not used in https://github.com/flwrlabs/flower/issues/6220."""
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        said = typed("run", "--engine", engine, *knob)
        assert said.code == 2
        assert "asks for a GPU, but this machine has none" in said.err
        assert list(tmp_path.iterdir()) == []

    def test_a_place_that_cannot_be_written_to(self, typed: Type, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for engine in ("inline", "simulation"):
            said = typed("run", *SETTINGS, "--engine", engine, "--set", "out=file", "--name", "x")
            assert said.code == 2
            assert f"cannot be written to {tmp_path / 'file' / 'x'}" in said.err
            assert "Traceback" not in said.err


class TestRun:
    """Small runs on the inline engine."""

    def test_a_run_leaves_its_results_and_says_where(self, typed: Type, tmp_path: Path) -> None:
        said = typed("run", "fedavg", *INLINE, "--name", "mine")
        assert (said.code, said.err) == (0, "")
        assert said.out.splitlines()[:4] == [
            "data     digits, 10 classes, partition iid",
            "clients  3, 3 per round",
            "method   fedavg",
            "model    mlp, 2 rounds, seed 1",
        ]
        assert re.fullmatch(r"engine   inline, \d+ clients? at a time", said.out.splitlines()[4])
        assert (tmp_path / "runs" / "mine" / "memory.txt").exists()
        assert "needs at most" not in said.out  # less than a tenth of the free memory
        left = {path.name for path in (tmp_path / "runs" / "mine").iterdir()}
        assert left >= {
            "config.toml", "records.jsonl", "outcome.json", "weights.npz", "engine.log",
            "accuracy.png", "summary.json",
        }  # fmt: skip
        for path in re.findall(r"^/.*$", said.out, re.MULTILINE):
            assert Path(path).stat().st_size > 0

    def test_a_name_is_made_up_when_none_is_given(self, typed: Type, tmp_path: Path) -> None:
        assert typed("run", "fedavg", *INLINE).code == 0
        [folder] = (tmp_path / "runs").iterdir()
        assert re.fullmatch(r"fedavg-\d{8}-\d{6}", folder.name)

    def test_a_name_that_is_taken_is_refused_and_resume_goes_on(
        self, typed: Type, tmp_path: Path
    ) -> None:
        assert typed("run", "fedavg", *INLINE, "--name", "mine").code == 0
        again = typed("run", "fedavg", *INLINE, "--name", "mine")
        assert again.code == 2
        assert "holds a run already; give this run another name (--name), or resume that run" in (
            again.err
        )
        more = typed("run", "fedavg", *INLINE, "--set", "rounds=3", "--name", "mine", "--resume")
        assert more.code == 0
        assert [r.round for r in read_records(tmp_path / "runs" / "mine")] == [1, 2, 3]

    def test_pairs_win_over_the_config_file(self, typed: Type, tmp_path: Path) -> None:
        text = 'method = "fedpvr"\nrounds = 7\nname = "filed"\n[train]\nlr = 0.5\n'
        (tmp_path / "run.toml").write_text(text)
        assert typed("run", "--config", "run.toml", *INLINE).code == 0
        kept = (tmp_path / "runs" / "filed" / "config.toml").read_text()
        assert 'method = "fedpvr"' in kept
        assert "rounds = 2" in kept  # of INLINE
        assert re.search(r"\[train\][^\[]*\nlr = 0.5", kept)

    def test_a_server_that_fails_says_why_and_exits_with_1(
        self, typed: Type, tmp_path: Path
    ) -> None:
        said = typed("run", "fedpvr", *INLINE, "--set", "fedpvr.block=nonsense", "--name", "bad")
        assert said.code == 1
        outcome = read_outcome(tmp_path / "runs" / "bad")
        assert outcome is not None
        assert outcome.status == "failed"
        assert 'no trainable module is named "nonsense"' in outcome.message
        assert f"fedpvr failed: {outcome.message}" in said.out
        assert "Traceback" not in said.out + said.err

    def test_a_server_that_cannot_write_says_so_and_exits_with_1(
        self, typed: Type, tmp_path: Path
    ) -> None:
        blocked = tmp_path / "runs" / "full" / "checkpoints"
        blocked.parent.mkdir(parents=True)
        blocked.touch()  # no folder can be made here, as on a full disk
        said = typed("run", "fedavg", *INLINE, "--name", "full")
        assert said.code == 1
        assert "fedavg failed: " in said.out
        assert "checkpoints" in said.out
        assert "cannot be written" in said.out

    def test_missing_data_are_asked_for_and_do_not_take_the_name(
        self, typed: Type, tmp_path: Path
    ) -> None:
        """A failed download had no reason in https://github.com/NVIDIA/NVFlare/issues/1080."""
        missing = ("--set", "data.name=cifar10", "--set", "data.download=false")
        said = typed("run", "fedavg", *INLINE, *missing, "--name", "mine")
        assert said.code == 1
        assert re.search(
            rf"put cifar-10\S* \(from https://\S*\) into {tmp_path / 'data'}", said.flat
        )
        assert typed("run", "fedavg", *INLINE, "--name", "mine").code == 0


class TestCompare:
    """Several methods at once."""

    def test_each_method_runs_once_in_a_folder_of_its_own(
        self, typed: Type, tmp_path: Path
    ) -> None:
        said = typed("compare", "fedavg", "fedpvr", "fedavg", *INLINE, "--name", "both")
        assert (said.code, said.err) == (0, "")
        folder = tmp_path / "runs" / "both"
        assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
            "fedavg",
            "fedpvr",
        ]
        assert said.out.count("fedavg: round 2/2") == 1
        assert said.out.splitlines()[2] == "methods  fedavg, fedpvr"
        summary = json.loads((folder / "summary.json").read_text())
        assert "fedavg" in json.dumps(summary)
        assert (folder / "accuracy.png").exists()

    def test_a_method_that_fails_does_not_take_the_others_with_it(
        self, typed: Type, tmp_path: Path
    ) -> None:
        wrong = ("--set", "fedpvr.block=nonsense")
        said = typed("compare", "fedpvr", "fedavg", *INLINE, *wrong, "--name", "both")
        assert said.code == 1
        assert "fedpvr failed" in said.out
        assert (tmp_path / "runs" / "both" / "fedavg" / "weights.npz").exists()
        assert str(tmp_path / "runs" / "both" / "summary.json") in said.out

    def test_a_taken_name_is_refused_before_the_first_method_starts(
        self, typed: Type, tmp_path: Path
    ) -> None:
        assert typed("compare", "fedpvr", *INLINE, "--name", "both").code == 0
        said = typed("compare", "fedavg", "fedpvr", *INLINE, "--name", "both")
        assert said.code == 2
        assert "holds a run already" in said.err
        assert not (tmp_path / "runs" / "both" / "fedavg").exists()


def test_output_in_a_pipe_has_no_control_codes(typed: Type) -> None:
    for arguments in (("compare", "fedavg", *INLINE, "--name", "x"), ("run", "nonsense")):
        said = typed(*arguments)
        assert not re.search(r"\x1b|\r", said.out + said.err)

    def test_a_comparison_that_was_cut_short_goes_on_with_what_is_missing(
        self, typed: Type, tmp_path: Path
    ) -> None:
        assert typed("compare", "fedavg", *INLINE, "--name", "both").code == 0
        said = typed("compare", "fedavg", "fedpvr", *INLINE, "--name", "both", "--resume")
        assert (said.code, said.err) == (0, "")
        assert "fedavg: complete already, 2 rounds" in said.out
        assert "fedavg: round" not in said.out
        assert "fedpvr: round 2/2" in said.out
        summary = json.loads((tmp_path / "runs" / "both" / "summary.json").read_text())
        assert [run["label"] for run in summary["runs"]] == ["fedavg", "fedpvr"]


def test_the_config_of_one_run_can_be_given_to_another(typed: Type, tmp_path: Path) -> None:
    assert typed("run", "fedavg", *INLINE, "--set", "train.lr=0.3", "--name", "one").code == 0
    config = tmp_path / "runs" / "one" / "config.toml"
    assert typed("run", "--engine", "inline", "--config", str(config), "--name", "two").code == 0
    one, two = (tmp_path / "runs" / name for name in ("one", "two"))
    assert (one / "config.toml").read_bytes() == (two / "config.toml").read_bytes()
    assert (one / "weights.npz").read_bytes() == (two / "weights.npz").read_bytes()


def test_a_method_given_twice_must_be_the_same(typed: Type) -> None:
    said = typed("run", "fedavg", *INLINE, "--set", "method=fedpvr")
    assert said.code == 2
    assert "given twice" in said.err
