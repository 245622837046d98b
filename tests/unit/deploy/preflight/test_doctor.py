"""The doctor finds what is wrong, says it in plain words, and never falls ill himself."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from deploy.preflight import doctor
from deploy.preflight.doctor import Finding

GB = 10**9
HEALTHY = {"flwr": "1.42.0", "torch": "2.14.1"}


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return doctor.machine_findings()


def test_the_real_examination_covers_every_topic_and_finds_this_installation_sound(
    findings: list[Finding],
) -> None:
    assert {finding.topic for finding in findings} >= {
        "python", "packages", "cpu", "memory", "disk", "gpu", "engines", "data", "qp solver",
    }  # fmt: skip
    verdicts = {finding.topic: finding.verdict for finding in findings}
    assert verdicts["python"] == verdicts["packages"] == verdicts["qp solver"] == "ok"
    assert all(finding.sentence for finding in findings)


def test_every_problem_comes_with_a_remedy(findings: list[Finding]) -> None:
    ill = [
        *findings,
        doctor.judge_python((3, 10), "3.10.2"),
        *doctor.judge_packages({"flwr": "1.41.0", "torch": None}),
        doctor.judge_memory(2 * GB, GB // 2, None),
        doctor.judge_disk("/x", 0, True),
        doctor.judge_disk("/x", 9 * GB, False),
        doctor.judge_gpu(0, "H", "no kernel image"),
        doctor.judge_no_gpu("13.0", True, ""),
        doctor.judge_solution(None),
    ]
    problems = [finding for finding in ill if finding.verdict == "problem"]
    assert len(problems) >= 9
    assert all(finding.remedy for finding in problems)


def test_the_exit_code_is_1_only_for_problems() -> None:
    fine, note = Finding("a", "ok", "x"), Finding("b", "note", "y")
    assert doctor.exit_code([]) == doctor.exit_code([fine, note]) == 0
    assert doctor.exit_code([fine, Finding("c", "problem", "z"), note]) == 1


@pytest.mark.parametrize(
    ("version", "verdict"), [((3, 10), "problem"), ((3, 11), "ok"), ((4, 0), "ok")]
)
def test_an_old_python_is_a_problem(version: tuple[int, int], verdict: str) -> None:
    assert doctor.judge_python(version, "name").verdict == verdict


@pytest.mark.parametrize("version", ["1.41.9", "1.43.0", "1.4.2", "1.420.0", "2.42.0"])
def test_another_flower_than_1_42_is_a_problem(version: str) -> None:
    *_, last = doctor.judge_packages({**HEALTHY, "flwr": version})
    assert last.verdict == "problem"
    assert version in last.sentence


@pytest.mark.parametrize("version", ["1.42.0", "1.42.3", "1.42.0.dev1"])
def test_flower_1_42_is_well(version: str) -> None:
    (only,) = doctor.judge_packages({**HEALTHY, "flwr": version})
    assert only.verdict == "ok"


def test_missing_packages_are_named() -> None:
    found = list(doctor.judge_packages({**HEALTHY, "ray": None, "osqp": None, "torch": None}))
    assert [finding.verdict for finding in found] == ["ok", "problem", "note"]
    assert "torch, osqp" in found[1].sentence
    assert "ray" in found[2].sentence


@pytest.mark.parametrize(
    ("machine", "allowed", "quota", "usable"),
    [
        (8, 8, None, 8),
        (8, 3, None, 3),
        (8, 8, 2.5, 2),
        (8, 4, 6.0, 4),
        (8, 8, 0.5, 1),
        (1, 1, None, 1),
    ],
)
def test_the_tightest_limit_counts(
    machine: int, allowed: int, quota: float | None, usable: int
) -> None:
    finding = doctor.judge_cpu(machine, allowed, quota)
    assert finding.sentence.startswith(f"{usable} usable CPU core")
    assert finding.verdict == ("ok" if usable > 1 else "note")


def cgroup(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        (V1, None),
        ({**V1, "cpu/cpu.cfs_quota_us": "200000\n"}, 2.0),
        ({"cpu.max": ""}, None),
    ],
)
def test_the_containers_cpu_limit_is_read(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    assert doctor.cgroup_cores(cgroup(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "4000000000\n"}, 4 * GB),
        ({"memory/memory.limit_in_bytes": "2000000000\n"}, 2 * GB),
    ],
)
def test_the_containers_memory_limit_is_read(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    assert doctor.cgroup_memory(cgroup(tmp_path, files)) == limit


@pytest.mark.parametrize(
    ("available", "limit", "verdict", "words"),
    [
        (24 * GB, None, "ok", "24.0 GB of memory available, of 32.0 GB in the machine"),
        (24 * GB, 3 * GB, "note", "3.0 GB of memory available, of 3.0 GB that this container"),
        (24 * GB, 2**63 - 4096, "ok", "of 32.0 GB in the machine"),
        (GB // 2, None, "problem", "too little"),
    ],
)
def test_memory_is_what_this_container_may_use(
    available: int, limit: int | None, verdict: str, words: str
) -> None:
    finding = doctor.judge_memory(32 * GB, available, limit)
    assert finding.verdict == verdict
    assert words in finding.sentence


@pytest.mark.parametrize(
    ("free", "writable", "verdict"),
    [
        (9 * GB, True, "ok"),
        (2 * GB, True, "note"),
        (GB // 2, True, "problem"),
        (9 * GB, False, "problem"),
    ],
)
def test_a_full_or_locked_disk_is_a_problem(free: int, writable: bool, verdict: str) -> None:
    assert doctor.judge_disk("/somewhere", free, writable).verdict == verdict


def test_a_containers_default_shared_memory_is_noted_with_the_option_to_change_it() -> None:
    small = doctor.judge_shared_memory(64 * 2**20)
    assert small.verdict == "note"
    assert "--shm-size" in small.remedy
    assert doctor.judge_shared_memory(2 * GB).verdict == "ok"


@pytest.mark.parametrize(
    ("cuda", "driver", "verdict", "words"),
    [
        ("13.0", False, "note", "no GPU: training runs on the CPU"),
        (None, False, "note", "no GPU: training runs on the CPU"),
        (None, True, "note", "built without CUDA"),
        ("13.0", True, "problem", "built for CUDA 13.0, cannot use it"),
    ],
)
def test_a_missing_gpu_is_explained(
    cuda: str | None, driver: bool, verdict: str, words: str
) -> None:
    finding = doctor.judge_no_gpu(cuda, driver, "")
    assert finding.verdict == verdict
    assert words in finding.sentence


def test_what_torch_says_about_the_driver_is_passed_on() -> None:
    assert (
        "driver is too old" in doctor.judge_no_gpu("13.0", True, "The driver is too old").sentence
    )


def test_a_gpu_counts_only_when_it_computes() -> None:
    assert doctor.judge_gpu(0, "H200", "").verdict == "ok"
    assert "no kernel image" in doctor.judge_gpu(0, "H200", "no kernel image").sentence


@pytest.mark.parametrize("point", [None, [0.5, 0.51], [float("nan"), 0.5]])
def test_a_wrong_solver_is_a_problem(point: list[float] | None) -> None:
    assert doctor.judge_solution(point).verdict == "problem"


def test_data_sets_are_looked_for_and_their_absence_is_only_a_note() -> None:
    assert "a, b" in doctor.judge_data(["a", "b"]).sentence
    assert doctor.judge_data([]).verdict == "note"


def test_a_failing_check_becomes_a_finding_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check_moon_phase() -> Iterator[Finding]:
        yield Finding("moon", "ok", "never seen: the check is incomplete")
        raise OSError("cloudy")

    def check_tool() -> Iterator[Finding]:
        import no_such_module  # type: ignore[import-not-found]

        yield no_such_module

    monkeypatch.setattr(doctor, "CHECKS", (check_moon_phase, check_tool, doctor.check_python))
    moon, tool, python = doctor.machine_findings()
    assert (moon.topic, moon.verdict) == ("moon phase", "problem")
    assert "cloudy" in moon.sentence
    assert tool.remedy == doctor.INSTALL
    assert python.verdict == "ok"


def test_the_printed_findings_hold_sentence_and_remedy_and_a_verdict_on_the_whole() -> None:
    out = io.StringIO()
    console = Console(file=out, width=70)
    doctor.print_findings(console, [Finding("disk", "problem", "full [100 %]", "make room")])
    assert out.getvalue().splitlines()[-1] == "1 problem to mend"
    assert "full [100 %]" in out.getvalue()
    assert "-> make room" in out.getvalue()
    doctor.print_findings(console, [Finding("disk", "note", "rather full")])
    assert out.getvalue().splitlines()[-1] == "Ready to run."


def test_importing_what_a_person_sees_loads_neither_flower_nor_torch() -> None:
    code = (
        "import sys, deploy.preflight.doctor, deploy.engines.progress\n"
        "print([name for name in ('flwr', 'torch', 'ray') if name in sys.modules])"
    )
    call = [sys.executable, "-c", code]
    out = subprocess.run(call, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(("days", "verdict"), [(-1, "problem"), (3, "note"), (400, "ok")])
def test_a_server_certificate_that_ends_soon_is_told(days: float, verdict: str) -> None:
    finding = doctor.judge_server_certificate(["localhost", "10.0.0.5"], days)
    assert finding.verdict == verdict
    assert "10.0.0.5" in finding.sentence
    assert ("pki renew" in finding.remedy) == (verdict != "ok")
