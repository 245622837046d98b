"""Looks at this machine and says in plain words what FedKeel can do on it, and what to mend.

Each check measures a value and passes it to a judge. The judges are pure functions.
"""

import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from deploy.preflight.findings import INSTALL, Finding, exit_code, print_findings, run_check
from deploy.preflight.hardware import (
    CGROUP,
    cgroup_cores,
    cgroup_memory,
    check_disk,
    check_gpu,
    check_memory,
    check_shared_memory,
    judge_disk,
    judge_gpu,
    judge_memory,
    judge_no_gpu,
    judge_shared_memory,
)

FLOWER = "1.42"  # the series whose behaviour the strategy and the engines rely on
DISPENSABLE = ("torchvision", "ray")  # for resnet18 alone; for simulations alone
PACKAGES = ("flwr", "torch", "torchvision", "ray", "osqp", "qpsolvers")
PKI = Path("pki")  # where `fedkeel pki init` puts what it makes
SOON_DAYS = 30
DATA_PLACES = ("/usr/share/datasets/fashion-mnist", "data")
__all__ = [
    "Finding", "cgroup_cores", "cgroup_memory", "exit_code", "judge_disk", "judge_gpu",
    "judge_memory", "judge_no_gpu", "judge_shared_memory", "machine_findings", "print_findings",
]  # fmt: skip


def machine_findings() -> list[Finding]:
    """Run every check. It takes a few seconds, because torch and Ray are imported."""
    return [finding for check in CHECKS for finding in run_check(check)]


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
    """Judge versions by package name. None means that the package is missing."""
    absent = [package for package, version in installed.items() if version is None]
    missing = [package for package in absent if package not in DISPENSABLE]
    spared = [package for package in absent if package in DISPENSABLE]
    present = [f"{package} {version}" for package, version in installed.items() if version]
    if present:
        yield Finding("packages", "ok", ", ".join(present))
    if missing:
        sentence = f"not installed: {', '.join(missing)}"
        yield Finding("packages", "problem", sentence, INSTALL)
    if spared:
        sentence = f"not installed: {', '.join(spared)}; a client or a server does without"
        yield Finding("packages", "note", sentence, f"for simulations: {INSTALL}")
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


def check_server_certificate() -> Iterator[Finding]:
    """On a federation's server: how long is its certificate good, and for which names?"""
    from deploy.federation.pki import certificate_info

    if PKI.is_dir():
        found = certificate_info(PKI)
        yield judge_server_certificate(found.names, found.days_left)


def judge_server_certificate(names: Sequence[str], days_left: float) -> Finding:
    """Judge the certificate in ./pki by its days left, negative when it has expired."""
    sentence = f"the server's certificate is for {', '.join(names)}; {days_left:.0f} days left"
    remedy = f"fedkeel pki renew --dir {PKI}, then restart the server"
    if days_left < 0:
        return Finding("certificate", "problem", f"{sentence}: no client gets in", remedy)
    if days_left < SOON_DAYS:
        return Finding("certificate", "note", sentence, remedy)
    return Finding("certificate", "ok", sentence)


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
    check_server_certificate,
)
