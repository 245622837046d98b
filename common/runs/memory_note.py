"""`memory.txt`: the server's estimated peak memory, as one line of text."""

import math
import re
from contextlib import suppress
from pathlib import Path

from common.io.files import atomic_write
from common.io.text import single_line

MEMORY = "memory.txt"


def write_memory_note(run_dir: Path, estimate: str) -> None:
    """Write the line. A full disk is ignored, because a run does not need this file."""
    with suppress(OSError), atomic_write(run_dir / MEMORY, durable=False) as file:
        file.write(f"{estimate}\n".encode())


def read_memory_note(run_dir: Path) -> str:
    """Return the line of a run, "" if it is not written yet."""
    try:
        text = (run_dir / MEMORY).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return single_line(text.rstrip())


def estimated_bytes(note: str) -> float:
    """Return the total that a line states, in bytes. It is inf for a damaged line."""
    total = re.match(r"([\d,]+(?:\.\d+)?) MB", note)
    return float(total[1].replace(",", "")) * 1e6 if total else math.inf


def clear_memory_note(run_dir: Path) -> None:
    """Remove the line of an earlier part of the run."""
    (run_dir / MEMORY).unlink(missing_ok=True)
