"""Looks at this machine and says in plain words what FedKeel can do on it, and what to mend.

Each check measures something and hands it to a small judge; the judges are pure.
"""

import importlib
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

Verdict: TypeAlias = Literal["ok", "note", "problem"]
GB = 1e9
INSTALL = "pip install fedkeel, in this environment"

FLOWER = "1.42"  # the series whose behaviour the strategy and the engines rely on
PACKAGES = ("flwr", "torch", "torchvision", "ray", "osqp", "qpsolvers")
DATA_PLACES = ("/usr/share/datasets/fashion-mnist", "data")
CGROUP = Path("/sys/fs/cgroup")
WORKER_MEMORY = 1.0 * GB  # a simulation worker with torch loaded and a small model
STYLES: Mapping[Verdict, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One thing found: what about, how bad, in plain words, and what to do (or "")."""

    topic: str
    verdict: Verdict
    sentence: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Run every check; takes a few seconds, for torch and Ray are really imported."""
    return [finding for check in CHECKS for finding in _safely(check)]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if something must be mended, else 0."""
    return int(any(finding.verdict == "problem" for finding in findings))


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print the findings as a table, the remedy under each sentence."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        said = Text(finding.sentence)
        if finding.remedy:
            said.append(f"\n-> {finding.remedy}", style="italic")
        table.add_row(Text(finding.verdict, STYLES[finding.verdict]), Text(finding.topic), said)
    console.print(table)
    problems = sum(finding.verdict == "problem" for finding in findings)
    plural = "" if problems == 1 else "s"
    console.print(f"{problems} problem{plural} to mend" if problems else "Ready to run.")


def _safely(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """A doctor must not fall ill himself: what a check raises becomes a finding."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(check())
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        failed = f"cannot tell: {error}" if missing else f"the check itself failed: {error!r}"
        remedy = INSTALL if missing else "report this, with this output"
        topic = check.__name__.removeprefix("check_").replace("_", " ")
        return [Finding(topic, "problem", failed, remedy)]


def check_python() -> Iterator[Finding]:
    """Is this Python new enough?"""
    yield judge_python(sys.version_info[:2], platform.python_version())


def judge_python(version: tuple[int, ...], name: str) -> Finding:
    """Compare (major, minor) with the oldest that FedKeel runs on."""
    if version >= (3, 11):
        return Finding("python", "ok", f"Python {name}")
    return Finding("python", "problem", f"Python {name} is too old", "install Python 3.11 or newer")


def check_packages() -> Iterator[Finding]:
    """Are the packages that everything rests on installed, and is Flower the right one?"""
    installed = {package: _version(package) for package in PACKAGES}
    yield from judge_packages(installed)


def judge_packages(installed: Mapping[str, str | None]) -> Iterator[Finding]:
    """Judge versions by package name; None is a package that is not there."""
    missing = [package for package, version in installed.items() if version is None]
    present = [f"{package} {version}" for package, version in installed.items() if version]
    if present:
        yield Finding("packages", "ok", ", ".join(present))
    if missing:
        sentence = f"not installed: {', '.join(missing)}"
        yield Finding("packages", "problem", sentence, INSTALL)
    flower = installed.get("flwr")
    if flower is not None and flower.split(".")[:2] != FLOWER.split("."):
        sentence = f"flwr is {flower}, but FedKeel is made for {FLOWER}.x"
        yield Finding(
            "packages", "problem", sentence, f'pip install "flwr[simulation]~={FLOWER}.0"'
        )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_cpu() -> Iterator[Finding]:
    """How many cores may this process really use?"""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    yield judge_cpu(os.cpu_count() or 1, cores, cgroup_cores(CGROUP))


def judge_cpu(machine: int, allowed: int, quota: float | None) -> Finding:
    """Say what the cores mean for a simulation.

    Args:
        machine: cores of the machine.
        allowed: cores this process may be scheduled on.
        quota: the container's limit in cores, None without one.
    """
    usable = max(1, min(allowed, int(quota)) if quota is not None else allowed)
    limits = [f"{allowed} allowed"] if allowed < machine else []
    limits += [f"container limited to {quota:g}"] if quota is not None and quota < allowed else []
    why = f" ({machine} in the machine, {', '.join(limits)})" if limits else ""
    cores = f"{usable} usable CPU core{'s' if usable > 1 else ''}{why}"
    if usable > 1:
        return Finding("cpu", "ok", f"{cores}: {usable} simulation workers train at the same time")
    return Finding("cpu", "note", f"{cores}: clients train one after another")


def cgroup_cores(root: Path) -> float | None:
    """Return the CPU limit of a container in cores, None without one (cgroup v2, then v1)."""
    v1 = [_words(root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    words = _words(root / "cpu.max") or [word for line in v1 for word in line]
    limited = len(words) == 2 and all(word.isdecimal() for word in words)
    return int(words[0]) / int(words[1]) if limited else None


def cgroup_memory(root: Path) -> int | None:
    """Return the memory limit of a container in bytes, None without one (cgroup v2, then v1)."""
    words = _words(root / "memory.max") or _words(root / "memory" / "memory.limit_in_bytes")
    return int(words[0]) if words and words[0].isdecimal() else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def check_memory() -> Iterator[Finding]:
    """How much memory is there, and how much of it is free?"""
    import psutil

    memory = psutil.virtual_memory()
    yield judge_memory(memory.total, memory.available, cgroup_memory(CGROUP))


def judge_memory(total: int, available: int, limit: int | None) -> Finding:
    """Judge bytes of memory; a container's limit below the total counts as the total."""
    ceiling = total if limit is None else min(limit, total)
    free = min(available, ceiling)
    where = "in the machine" if ceiling == total else "that this container may use"
    sentence = f"{_gb(free)} of memory available, of {_gb(ceiling)} {where}"
    workers = int(free / WORKER_MEMORY)
    if workers < 1:
        remedy = "close other programs, or give the machine or container at least 2 GB"
        return Finding("memory", "problem", f"{sentence}: too little to train", remedy)
    room = f"{sentence}: room for about {workers} simulation worker{'s' if workers > 1 else ''}"
    return Finding("memory", "ok" if workers >= 4 else "note", room)


def check_disk() -> Iterator[Finding]:
    """Is there room, and may we write, where runs and temporary files go?"""
    for name, folder in (("here", Path.cwd()), ("temporary files", Path(tempfile.gettempdir()))):
        free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
        yield judge_disk(f"{folder} ({name})", free, writable)


def judge_disk(place: str, free: int, writable: bool) -> Finding:
    """Judge the bytes free in a folder."""
    sentence = f"{_gb(free)} free in {place}"
    if not writable:
        remedy = "run from a folder you may write to, or set TMPDIR for temporary files"
        return Finding("disk", "problem", f"{place} cannot be written to", remedy)
    if free < 1 * GB:
        return Finding("disk", "problem", f"only {sentence}", "make room: at least 1 GB, better 5")
    if free < 5 * GB:
        return Finding("disk", "note", f"{sentence}: little for data sets and checkpoints")
    return Finding("disk", "ok", sentence)


def check_shared_memory() -> Iterator[Finding]:
    """Can Ray keep its objects in memory?"""
    if Path("/dev/shm").is_dir():
        yield judge_shared_memory(shutil.disk_usage("/dev/shm").total)


def judge_shared_memory(size: int) -> Finding:
    """Judge the size of /dev/shm in bytes; a container gets 64 MB unless it is told otherwise."""
    sentence = f"/dev/shm holds {_gb(size)}"
    if size >= 1 * GB:
        return Finding("shared memory", "ok", sentence)
    slow = f"{sentence}: Ray falls back to the disk and the simulation engine is slow"
    remedy = (
        "start the container with --shm-size=2g (compose: shm_size: 2g), or use the inline engine"
    )
    return Finding("shared memory", "note", slow, remedy)


def check_gpu() -> Iterator[Finding]:
    """Can torch use a GPU, and if not, why not?"""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    driver = Path("/proc/driver/nvidia/version").exists() or bool(shutil.which("nvidia-smi"))
    why = " ".join(str(warning.message).split("(Triggered")[0].strip() for warning in caught)
    if not usable:
        yield judge_no_gpu(torch.version.cuda, driver, why)
        return
    for index in range(torch.cuda.device_count()):
        failure = ""
        try:
            torch.ones(2, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            failure = str(error).splitlines()[0]
        yield judge_gpu(index, torch.cuda.get_device_name(index), failure)


def judge_gpu(index: int, name: str, failure: str) -> Finding:
    """Judge a GPU that torch sees by how a first small sum on it went ("" is well)."""
    if not failure:
        return Finding("gpu", "ok", f"GPU {index}: {name}, and it computes")
    sentence = f"GPU {index}: {name} is seen but does not compute: {failure}"
    return Finding("gpu", "problem", sentence, "install a torch build for this GPU and its driver")


def judge_no_gpu(cuda: str | None, driver: bool, why: str) -> Finding:
    """Explain why torch sees no GPU.

    Args:
        cuda: the CUDA version torch was built with, None for a build without CUDA.
        driver: whether an NVIDIA driver is installed.
        why: what torch said about it, "" for nothing.
    """
    slow = "training runs on the CPU"
    if not driver:
        return Finding("gpu", "note", f"no GPU: {slow} (no NVIDIA driver is loaded)")
    if cuda is None:
        sentence = f"there is an NVIDIA driver, but this torch is built without CUDA: {slow}"
        return Finding("gpu", "note", sentence, "install a torch build with CUDA")
    sentence = f"there is an NVIDIA driver, but torch, built for CUDA {cuda}, cannot use it: {slow}"
    remedy = f"update the driver to one for CUDA {cuda}, or install a torch for an older CUDA"
    return Finding("gpu", "problem", f"{sentence}. {why}".rstrip(". "), remedy)


def check_engines() -> Iterator[Finding]:
    """Where can a run happen?"""
    yield Finding("engines", "ok", "inline: always there")
    try:
        importlib.import_module("ray")
    except Exception as error:  # a broken Ray fails in many ways
        sentence = f"simulation: Ray cannot be imported: {error}"
        yield Finding("engines", "note", sentence, 'pip install "flwr[simulation]", or run inline')
    else:
        yield Finding("engines", "ok", "simulation: Ray can be imported")


def check_data() -> Iterator[Finding]:
    """Which data sets are there without a download?"""
    yield judge_data([place for place in DATA_PLACES if Path(place).is_dir()])


def judge_data(found: Sequence[str]) -> Finding:
    """Judge the folders of DATA_PLACES that exist."""
    if found:
        return Finding("data", "ok", f"data sets found in {', '.join(found)}")
    sentence = "no data set found on this machine"
    return Finding("data", "note", sentence, "put the data set's files into ./data")


def check_qp_solver() -> Iterator[Finding]:
    """Does the quadratic-program solver solve? Nearest point to (1, 1) with x + y <= 1."""
    import numpy as np
    from qpsolvers import solve_qp
    from scipy.sparse import csc_matrix

    weights, row = csc_matrix(np.eye(2)), csc_matrix(np.ones((1, 2)))
    point = solve_qp(
        weights, -np.ones(2), row, np.ones(1), solver="osqp", eps_abs=1e-9, eps_rel=1e-9
    )
    yield judge_solution(None if point is None else [float(value) for value in point])


def judge_solution(point: Sequence[float] | None) -> Finding:
    """Judge the solver's answer to a problem whose solution is (1/2, 1/2)."""
    if point is not None and all(abs(value - 0.5) < 1e-6 for value in point):
        return Finding("qp solver", "ok", "OSQP solves a small problem exactly")
    sentence = f"OSQP answered {point} to a problem whose solution is [0.5, 0.5]"
    remedy = "pip install --force-reinstall osqp qpsolvers; FedPCD cannot be trusted before"
    return Finding("qp solver", "problem", sentence, remedy)


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_packages,
    check_cpu,
    check_memory,
    check_disk,
    check_shared_memory,
    check_gpu,
    check_engines,
    check_data,
    check_qp_solver,
)
