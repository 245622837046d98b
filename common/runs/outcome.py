"""`outcome.json`: how a run ended."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from common.io.typed_json import FiniteFloat, Int64, JsonTypeError, from_json
from common.runs.json_file import RecordError, write_json

OUTCOME = "outcome.json"
Status: TypeAlias = Literal["completed", "failed", "stopped"]


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its status, a message, the number of rounds, and seconds."""

    status: Status
    message: str
    rounds: Int64
    seconds: FiniteFloat

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise RecordError(
                f'a run ends as one of {", ".join(get_args(Status))}, not as "{self.status}"'
            )


def write_outcome(run_dir: Path, outcome: Outcome) -> None:
    """Write `outcome.json` in one piece or not at all.

    Raises:
        RecordError: the file cannot be written.
    """
    write_json(run_dir / OUTCOME, outcome, indent=2)


def read_outcome(run_dir: Path) -> Outcome | None:
    """Return the outcome of a run, None while the run has none.

    Raises:
        RecordError: the file holds no outcome.
    """
    path = run_dir / OUTCOME
    try:
        return from_json(Outcome, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, JsonTypeError) as error:
        raise RecordError(f"{path} does not say how a run ended: {error}") from error


def clear_outcome(run_dir: Path) -> None:
    """Remove the outcome, because the run starts or resumes."""
    (run_dir / OUTCOME).unlink(missing_ok=True)
