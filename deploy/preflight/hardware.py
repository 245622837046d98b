"""Measure and judge memory, disk and GPU of this machine. The judges are pure functions."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from deploy.preflight.findings import Finding

GB = 1e9
CGROUP = Path("/sys/fs/cgroup")
WORKER_MEMORY = 1.0 * GB  # a process that trains, with torch loaded and a small model
CLIENT_SHARED_MEMORY = 60 * 2**20  # bytes; a container's usual 64 MB, less what is lost to it
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/etc/nv_tegra_release"))  # card, Jetson


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


def measure_memory() -> tuple[int, int, int | None]:
    """Return the bytes in the machine, those available, and the container's limit."""
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available, cgroup_memory(CGROUP)


def check_memory() -> Iterator[Finding]:
    """How much memory is there, and how much of it is free?"""
    yield judge_memory(*measure_memory())


def judge_memory(total: int, available: int, limit: int | None) -> Finding:
    """Judge bytes of memory. A container's limit below the total counts as the total."""
    free, sentence = free_memory(total, available, limit)
    workers = int(free / WORKER_MEMORY)
    if workers < 1:
        return _too_little(sentence)
    room = f"{sentence}: room for about {workers} simulation worker{'s' if workers > 1 else ''}"
    return Finding("memory", "ok" if workers >= 4 else "note", room)


def judge_client_memory(total: int, available: int, limit: int | None) -> Finding:
    """Judge bytes of memory for one client of a federation."""
    free, sentence = free_memory(total, available, limit)
    if free < WORKER_MEMORY:
        return _too_little(sentence)
    if free < 2 * WORKER_MEMORY:
        return Finding("memory", "note", f"{sentence}: enough for a small model only")
    return Finding("memory", "ok", sentence)


def free_memory(total: int, available: int, limit: int | None) -> tuple[int, str]:
    """Return the bytes that may still be used, and a sentence about them."""
    ceiling = total if limit is None else min(limit, total)
    free = min(available, ceiling)
    where = "in the machine" if ceiling == total else "that this container may use"
    return free, f"{gb(free)} of memory available, of {gb(ceiling)} {where}"


def _too_little(sentence: str) -> Finding:
    remedy = "close other programs, or give the machine or container at least 2 GB"
    return Finding("memory", "problem", f"{sentence}: too little to train", remedy)


def check_disk() -> Iterator[Finding]:
    """Is there room, and may we write, where runs and temporary files go?"""
    for name, folder in (("here", Path.cwd()), ("temporary files", Path(tempfile.gettempdir()))):
        free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
        yield judge_disk(f"{folder} ({name})", free, writable)


def judge_disk(place: str, free: int, writable: bool) -> Finding:
    """Judge the bytes free in a folder."""
    sentence = f"{gb(free)} free in {place}"
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
    """Judge the size of /dev/shm in bytes. Docker gives a container 64 MB by default."""
    sentence = f"/dev/shm holds {gb(size)}"
    if size >= 1 * GB:
        return Finding("shared memory", "ok", sentence)
    slow = f"{sentence}: Ray falls back to the disk and the simulation engine is slow"
    remedy = (
        "start the container with --shm-size=2g (compose: shm_size: 2g), or use the inline engine"
    )
    return Finding("shared memory", "note", slow, remedy)


def judge_client_shared_memory(size: int) -> Finding:
    """Judge the size of /dev/shm in bytes for a client, which starts no data-loader processes."""
    sentence = f"/dev/shm holds {gb(size)}"
    if size >= CLIENT_SHARED_MEMORY:
        return Finding("shared memory", "ok", sentence)
    remedy = "start the container with --shm-size=64m or more (compose: shm_size)"
    return Finding(
        "shared memory", "note", f"{sentence}, less than a container's usual 64 MB", remedy
    )


def check_gpu() -> Iterator[Finding]:
    """Can torch use a GPU, and if not, why not?"""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    driver = any(map(Path.exists, DRIVERS)) or bool(shutil.which("nvidia-smi"))
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
        why: torch's error message, "" without one.
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


def gb(size: float) -> str:
    """Return a number of bytes in GB, for people."""
    return f"{size / GB:.1f} GB"
