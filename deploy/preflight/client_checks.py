"""Is this machine ready to be a client: its key, memory, disk, data, and a step of training."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from common.errors import DeployError
from common.io.files import lock
from deploy.federation.client_keys import (
    PublicKey,
    check_private,
    make_key,
    public_line,
    read_public,
)
from deploy.preflight.dry_run import DryRunTask
from deploy.preflight.findings import Finding
from deploy.preflight.hardware import (
    judge_client_memory,
    judge_client_shared_memory,
    judge_disk,
    measure_memory,
)

SHARED_MEMORY = Path("/dev/shm")
SECONDS = {"data": 3600.0, "step": 300.0}  # a folder may hold very many pictures


def check_key(name: str, path: Path) -> tuple[PublicKey | None, Finding]:
    """Return the client's public key, made if there is none, and what there is to say about it."""
    try:
        is_new = not os.path.lexists(path)
        if is_new:
            make_key(path)
        if problems := check_private(path):
            raise DeployError("; ".join(problems))
        public = read_public(public_line(path))
    except DeployError as error:
        return None, Finding("key", "problem", str(error), "mend or move the file")
    return public, judge_key(name, path, public.fingerprint, is_new=is_new)


def judge_key(name: str, path: Path, fingerprint: str, *, is_new: bool) -> Finding:
    """Say whose key it is, and for a new one what to do with it."""
    if not is_new:
        return Finding("key", "ok", f"{path} is the key of {name}: {fingerprint}")
    sentence = f"a key was made for {name}: {path} ({fingerprint}); it stays on this machine"
    remedy = (
        f"send {path}.pub to the operator, who runs: fedkeel enroll {name} --key {path.name}.pub"
    )
    return Finding("key", "note", sentence, remedy)


@contextmanager
def key_lock(path: Path) -> Iterator[bool]:
    """Lock a key for this process. Yield False if another process has it."""
    with path.open("rb") as file:
        yield lock(file.fileno(), wait=False)


def judge_key_lock(name: str, *, is_free: bool, check_only: bool) -> Iterator[Finding]:
    """Refuse a second node of the same client on this machine."""
    if is_free:
        return
    sentence = f'the client "{name}" is running on this machine already, with this very key'
    if check_only:
        yield Finding("key", "note", sentence)
    else:
        remedy = "stop that one first, or give this one a key and a name of its own"
        yield Finding("key", "problem", sentence, remedy)


def check_space(data: Path | None, home: Path) -> Iterator[Finding]:
    """Is there room where this client writes?"""
    places = {"this client's files": home, "temporary files": Path(tempfile.gettempdir())}
    if data is not None and os.access(data, os.W_OK):
        places["decoded pictures"] = data
    seen: set[int] = set()
    for what, folder in places.items():
        device = folder.stat().st_dev
        if device not in seen:
            free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
            yield judge_disk(f"{folder} ({what})", free, writable)
        seen.add(device)


def check_memory() -> Iterator[Finding]:
    """Is there memory enough to train?"""
    yield judge_client_memory(*measure_memory())


def check_shared_memory() -> Iterator[Finding]:
    """How much memory may processes share?"""
    if SHARED_MEMORY.is_dir():
        yield judge_client_shared_memory(shutil.disk_usage(SHARED_MEMORY).total)


def run_in_child(what: str, order: DryRunTask, seconds: float | None = None) -> list[Finding]:
    """Run one check in a child process and return its findings.

    Args:
        what: "data" or "step", as deploy.preflight.dry_run has it.
        order: the task of the child.
        seconds: time limit, after which the child is killed. None takes the limit of SECONDS.
    """
    seconds = SECONDS[what] if seconds is None else seconds
    topic = "training step" if what == "step" else what
    path = os.pathsep.join(entry for entry in sys.path if entry)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "deploy.preflight.dry_run", what],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    is_late = False
    try:
        text = json.dumps(asdict(order)).encode()
        try:
            out, err = child.communicate(text, timeout=seconds)
        except subprocess.TimeoutExpired:
            is_late = True
            _kill(child)
            out, err = child.communicate()
    finally:
        _kill(child)
    findings = [Finding(**json.loads(line)) for line in out.splitlines() if line[:1] == b"{"]
    if is_late:
        sentence = f"it did not end within {seconds:g} s and was killed"
        findings.append(
            Finding(topic, "problem", sentence, "look at the driver and the disk (dmesg)")
        )
    elif child.returncode:
        findings.append(_judge_end(topic, child.returncode, err.decode(errors="replace")))
    return findings


def _kill(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _judge_end(topic: str, code: int, err: str) -> Finding:
    if code == -signal.SIGKILL:
        sentence = "the process that tried it was killed, most likely for want of memory"
        return Finding(topic, "problem", sentence, "free memory, or ask for a smaller model")
    last = (err.strip().splitlines() or ["nothing was said"])[-1]
    sentence = f"the process that tried it ended with exit code {code}: {last}"
    return Finding(topic, "problem", sentence, "report this, with this output")
