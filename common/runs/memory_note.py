"""What a run's server needs of memory at most, in a line for whoever follows the run."""

from contextlib import suppress
from pathlib import Path

from common.io.files import atomic_write
from common.io.text import single_line

MEMORY = "memory.txt"


def write_memory_note(folder: Path, needs: str) -> None:
    """Write the line; a full disk is no reason to end a run, so it is not told here."""
    with suppress(OSError), atomic_write(folder / MEMORY, durable=False) as file:
        file.write(f"{needs}\n".encode())


def read_memory_note(folder: Path) -> str:
    """Return the line of the run in this folder, "" while it is not known."""
    try:
        return single_line((folder / MEMORY).read_text(encoding="utf-8", errors="replace").rstrip())
    except OSError:
        return ""


def clear_memory_note(folder: Path) -> None:
    """Forget what an earlier run in this folder needed."""
    (folder / MEMORY).unlink(missing_ok=True)
