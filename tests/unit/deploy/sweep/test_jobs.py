"""Room for runs, runs as processes, and how the sweep shows them."""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from common.config import parse
from common.errors import DeployError
from common.runs.outcome import Outcome, write_outcome
from common.runs.records import CONFIG_FILE, RECORDS, Recorder, RoundRecord
from deploy.sweep import jobs
from deploy.sweep.jobs import JobSlot, Result, job_slots, run_all
from deploy.sweep.plan import Plan
from deploy.sweep.run_status import RunStatus
from deploy.sweep.runs import runs_of
from deploy.sweep.sweep_progress import SweepTally, line_about, monitoring
from deploy.system.process_group import ProcessGroup

CPU = parse({"train.device": "cpu"})


def waiting(folder: Path, *methods: str, to: Any = "start", **base: Any) -> list[RunStatus]:
    settings = {"rounds": 10, **base}
    runs = runs_of(Plan("x", base=settings, grid={"method": list(methods)}))
    return [RunStatus(run.below(folder), to) for run in runs]


@dataclass
class Seen:
    """A monitor that remembers."""

    most: int = 0
    results: list[Result] = field(default_factory=list)

    def look(self, running: Sequence[RunStatus], waiting: Sequence[RunStatus]) -> None:
        self.most = max(self.most, len(running))

    def ended(self, result: Result) -> None:
        self.results.append(result)


class TestLanes:
    """Nothing is oversubscribed."""

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "usable_cores", lambda: 8)
        monkeypatch.delenv(jobs.GPUS, raising=False)

    def gpus(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)

    def test_one_run_a_core(self) -> None:
        assert job_slots([CPU] * 20, 0) == [JobSlot(1, {})] * 8

    def test_fewer_runs_share_the_cores(self) -> None:
        assert job_slots([CPU] * 3, 0) == [JobSlot(2, {})] * 3
        assert job_slots([CPU] * 20, 2) == [JobSlot(4, {})] * 2

    def test_one_run_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus(monkeypatch, 2)
        both = [JobSlot(4, {jobs.GPUS: "0"}), JobSlot(4, {jobs.GPUS: "1"})]
        assert job_slots([parse({})] * 20, 0) == both
        assert job_slots([CPU, parse({})] * 5, 0) == both
        monkeypatch.setenv(jobs.GPUS, "3, 5")
        slots = job_slots([parse({})] * 9, 4)
        assert [slot.env[jobs.GPUS] for slot in slots] == ["3", "5", "3", "5"]

    def test_no_gpu_is_no_reason_to_stop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus(monkeypatch, 0)
        assert job_slots([parse({})] * 20, 0) == [JobSlot(1, {})] * 8

    def test_torch_is_not_loaded_for_runs_on_the_cpu(self) -> None:
        code = (
            "import sys; from common.config import parse; from deploy.sweep import command, jobs; "
            "jobs.job_slots([parse({'train.device': 'cpu'})] * 3, 0); "
            "sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestProcesses:
    """Runs whose process is a shell's line, which sees the run's folder as $0."""

    @pytest.fixture(autouse=True)
    def shell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "POLL_SECONDS", 0.01)
        start = ProcessGroup.start

        def shell(self: ProcessGroup, command: Sequence[str], **kinds: Any) -> Any:
            folder = Path(command[command.index("--config") + 1]).parent
            return start(self, ["/bin/sh", "-c", TestProcesses.line, str(folder)], **kinds)

        monkeypatch.setattr(ProcessGroup, "start", shell)

    line = ""

    def do(self, todo: Sequence[RunStatus], line: str, room: int = 2, rounds: int = 10) -> Seen:
        """Do the runs; where the line does not exit, it leaves what a run of these rounds does."""
        made = Path(todo[0].run.config.out) / "made"
        made.mkdir()
        (made / CONFIG_FILE).touch()
        for number in range(1, rounds + 1):
            Recorder(made / RECORDS).append(RoundRecord(number, 0.1, [], []))
        TestProcesses.line = f'{line}\ncp {shlex.quote(str(made))}/* "$0"'
        seen = Seen()
        assert run_all(todo, [JobSlot(1, {})] * room, "inline", seen) == seen.results
        return seen

    def test_as_many_at_once_as_there_is_room(self, tmp_path: Path) -> None:
        seen = self.do(waiting(tmp_path, "fedavg", "fedpcd", "fedprox", "afl", "qffl"), "sleep 0.1")
        assert seen.most == 2
        assert [result.status for result in seen.results] == ["completed"] * 5

    def test_only_a_complete_run_lets_go_of_its_checkpoints(self, tmp_path: Path) -> None:
        todo = waiting(tmp_path, "fedavg", "afl")
        line = 'mkdir "$0/checkpoints"; touch "$0/checkpoints/9"; case "$0" in *afl) exit 1; esac'
        self.do(todo, line)
        assert not (tmp_path / "fedavg" / "checkpoints").exists()
        assert (tmp_path / "afl" / "checkpoints" / "9").exists()

    def test_what_completed_in_a_folder_that_was_removed_meanwhile_has_failed(
        self, tmp_path: Path
    ) -> None:
        todo = waiting(tmp_path, "fedavg")
        told = '{"status": "completed", "message": "", "rounds": 10, "seconds": 1.0}'
        line = f'rm -r "$0"; mkdir "$0"; printf %s \'{told}\' > "$0/outcome.json"'
        [result] = self.do(todo, f"{line}; exit 0").results
        assert result.status == "failed"
        assert "there is no config.toml, records of 0 of its 10 rounds are left" in result.message
        assert not (todo[0].folder / "outcome.json").exists()

    def test_what_completed_with_records_of_some_rounds_has_failed(self, tmp_path: Path) -> None:
        todo = waiting(tmp_path, "fedavg")
        [result] = self.do(todo, 'mkdir "$0/checkpoints"', rounds=9).results
        assert result.status == "failed"
        assert "meanwhile: records of 9 of its 10 rounds are left; remove that" in result.message
        assert (todo[0].folder / "checkpoints").exists()

    def test_what_completed_with_records_that_are_broken_has_failed(self, tmp_path: Path) -> None:
        [result] = self.do(waiting(tmp_path, "fedavg"), 'echo x > "$0/records.jsonl"; exit').results
        assert result.status == "failed"
        assert "line 1" in result.message

    def test_a_run_that_fails_is_told_and_the_others_go_on(self, tmp_path: Path) -> None:
        todo = waiting(tmp_path, "fedavg", "fedpcd", "afl")
        line = 'case "$0" in *fedpcd) echo why; echo "because  of that"; exit 3;; esac'
        seen = self.do(todo, line, room=1)
        assert [result.status for result in seen.results] == ["completed", "failed", "completed"]
        assert seen.results[1].message == "its process ended with code 3: because of that"
        assert "because" in (tmp_path / "fedpcd" / jobs.OUTPUT).read_text()

    def test_the_reason_is_the_outcomes_where_there_is_one(self, tmp_path: Path) -> None:
        todo = waiting(tmp_path, "fedavg")
        told = '{"status": "failed", "message": "no data,\\n  none", "rounds": 0, "seconds": 1.0}'
        seen = self.do(todo, f"printf %s '{told}' > \"$0/outcome.json\"; exit 1")
        assert seen.results[0].message == "no data, none"

    def test_an_earlier_parts_outcome_is_not_the_reason(self, tmp_path: Path) -> None:
        todo = waiting(tmp_path, "fedavg")
        todo[0].folder.mkdir(parents=True)
        write_outcome(todo[0].folder, Outcome("failed", "long ago", 0, 1.0))
        seen = self.do(todo, "kill -9 $$")
        assert seen.results[0].message == "its process was killed by signal 9"

    def test_a_folder_that_cannot_be_made_fails_that_run_alone(self, tmp_path: Path) -> None:
        (tmp_path / "fedavg").touch()
        seen = self.do(waiting(tmp_path, "fedavg", "afl"), "true")
        assert {r.run_status.run.name: r.status for r in seen.results} == {
            "fedavg": "failed",
            "afl": "completed",
        }

    def test_a_full_disk_leaves_no_torn_config_for_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(handle: int) -> None:
            raise OSError(ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        [result] = run_all(waiting(tmp_path, "fedavg"), [JobSlot(1, {})], "inline", Seen())
        assert "No space left" in result.message
        assert list((tmp_path / "fedavg").iterdir()) == []

    def test_leaving_early_ends_what_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Impatient(Seen):
            def look(self, running: Sequence[RunStatus], waiting: Sequence[RunStatus]) -> None:
                if (tmp_path / "fedavg" / "up").exists():
                    raise KeyboardInterrupt

        TestProcesses.line = "echo $$ > \"$0/up\"; trap '' TERM; sleep 60"
        monkeypatch.setattr(jobs, "PATIENCE_SECONDS", 0.1)
        with pytest.raises(KeyboardInterrupt):
            run_all(waiting(tmp_path, "fedavg"), [JobSlot(1, {})], "inline", Impatient())
        pid = int((tmp_path / "fedavg" / "up").read_text())
        assert not Path(f"/proc/{pid}").exists()

    def test_the_runs_end_when_the_one_that_would_take_them_along_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ProcessGroup, "has_leader", lambda self: False)
        with pytest.raises(DeployError, match="give the command again"):
            self.do(waiting(tmp_path, "fedavg"), "sleep 60")


class TestShown:
    """What is seen of a sweep."""

    def test_the_estimate_weighs_rounds_and_knows_methods(self, tmp_path: Path) -> None:
        fast, slow, unknown = waiting(tmp_path, "fedavg", "fedpcd", "afl")
        tally = SweepTally(total=6, job_slots=1)
        assert tally.seconds_left([], [fast]) is None
        tally.ended(Result(fast, "completed", "", 10.0))  # 1 s a round
        assert tally.seconds_left([], [slow]) == pytest.approx(10.0)
        tally.ended(Result(replace(slow, done=5), "completed", "", 15.0))  # 3 s a round
        assert tally.seconds_left([], [slow, slow]) == pytest.approx(60.0)
        assert tally.seconds_left([(slow, 9)], [fast]) == pytest.approx(13.0)
        assert tally.seconds_left([], [unknown]) == pytest.approx(10 * 25 / 15)
        tally.ended(Result(unknown, "failed", "why", 500.0))  # tells nothing of the pace
        assert tally.seconds_left([], [unknown]) == pytest.approx(10 * 25 / 15)
        assert str(tally) == "2 of 6 runs done, 1 failed, 3 left"
        two = replace(tally, job_slots=2)
        assert two.seconds_left([], [slow] * 4) == pytest.approx(60.0)
        assert two.seconds_left([(slow, 0)], []) == pytest.approx(30.0)  # one cannot be halved

    @pytest.mark.parametrize("terminal", [False, True])
    def test_each_run_that_ends_gets_its_line(self, terminal: bool, tmp_path: Path) -> None:
        good, bad = waiting(tmp_path, "fedavg", "fedpcd")
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=100)
        with monitoring(console, 3, 2) as monitor:
            monitor.look([good, bad], [])
            monitor.ended(Result(good, "completed", "", 61.0))
            monitor.ended(Result(bad, "failed", "no [data]", 1.0))
        said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
        assert "fedavg done in 1:01: nothing evaluated" in said
        assert "fedpcd failed after 0:01: no [data]" in said
        assert ("1 of 3 runs done, 1 failed, 1 left" in said) is not terminal
        assert ("0 of 3 runs done, 3 left" in said) is terminal
        assert ("\x1b" in out.getvalue()) is terminal

    def test_records_that_cannot_be_read_are_told_in_the_line(self, tmp_path: Path) -> None:
        [one] = waiting(tmp_path, "fedavg")
        one.folder.mkdir(parents=True)
        (one.folder / "records.jsonl").write_text("nonsense\n")
        assert "line 1" in line_about(Result(one, "completed", "", 1.0))
