"""`records.jsonl`: one JSON line per round.

A line counts once its newline is written. Bytes after the last newline are the torn line of a
killed process. Undefined numbers are null.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from common.io.typed_json import FiniteFloat, Int64, JsonTypeError, from_json
from common.runs.client_scores import Evaluation
from common.runs.json_file import RecordError, json_values, write_file
from common.types import ClientId

CONFIG_FILE = "config.toml"
RECORDS = "records.jsonl"


@dataclass(frozen=True)
class RoundRecord:
    """The record of one round.

    Attributes:
        round: number of the round.
        lr: local learning rate.
        cohort: clients that got an order to train.
        replied: clients whose replies were used.
        dropped: the reason why the reply of each other client was not used, or is missing.
        void: the reason why the round did not change the model, None for an ordinary round.
        train_loss: mean training loss, None if no client reports it.
        again: clients that got the order again, because they were lost during the round.
        late: replies to earlier rounds that came after the deadline, as a sentence by client.
        arrived: seconds from the order to the reply, by client.
        worked: seconds that a client measured itself: "start" (start of its process, if it has
            one of its own) and "work".
        bytes_down: bytes of the order to train, by client.
        bytes_up: bytes of the reply, by client.
        examples: number of training samples of each used reply, by client.
        lengths: length of each vector of each used reply, by client: "update" is the displacement.
        seconds: seconds by phase: configure, train, aggregate, checkpoint, evaluate.
        method: report of the method: numbers, bools, strings, short lists.
        diagnostics: diagnostics of the round, see `server_app.diagnostics.diagnosis`.
        evaluation: None for a round without evaluation.
    """

    round: Int64
    lr: FiniteFloat
    cohort: list[ClientId]
    replied: list[ClientId]
    dropped: dict[ClientId, str] = field(default_factory=dict)
    void: str | None = None
    train_loss: FiniteFloat | None = None
    again: list[ClientId] = field(default_factory=list)
    late: dict[ClientId, str] = field(default_factory=dict)
    arrived: dict[ClientId, FiniteFloat] = field(default_factory=dict)
    worked: dict[ClientId, dict[str, FiniteFloat]] = field(default_factory=dict)
    bytes_down: dict[ClientId, Int64] = field(default_factory=dict)
    bytes_up: dict[ClientId, Int64] = field(default_factory=dict)
    examples: dict[ClientId, Int64] = field(default_factory=dict)
    lengths: dict[ClientId, dict[str, FiniteFloat]] = field(default_factory=dict)
    seconds: dict[str, FiniteFloat] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RoundRecord":
        """Return the record from a parsed line. Fields unknown to an older version are empty.

        Raises:
            JsonTypeError: a part is missing or has the wrong type.
        """
        record = from_json(cls, value)
        if record.evaluation:
            record.evaluation.checked("evaluation")
        return record

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values. Non-finite numbers become None.

        Raises:
            RecordError: the record holds a value that has no JSON form.
        """
        return {key: json_values(value, key) for key, value in vars(self).items()}


@dataclass(frozen=True)
class Recorder:
    """Writes `records.jsonl` at `path`, one line per record.

    The file is closed between calls. A line is on disk when `append` returns.
    """

    path: Path

    def append(self, record: RoundRecord) -> None:
        """Add one line, after removing the torn line of a killed process.

        Raises:
            RecordError: the record has no JSON form or the file cannot be written.
        """
        line = json.dumps(record.to_json(), allow_nan=False) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - 1, 0))
                if file.read(1) not in (b"", b"\n"):
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(f"round {record.round} cannot be recorded: {error}") from error

    def truncate_after(self, last: int) -> None:
        """Remove the lines of rounds after `last`, for a resume from the checkpoint of that round.

        Raises:
            RecordError: a line cannot be read or the file cannot be replaced.
        """
        lines = _whole_lines(self.path)
        rounds = [parse_line(line, self.path, n).round for n, line in enumerate(lines, start=1)]
        kept = [line for line, number in zip(lines, rounds, strict=True) if number <= last]
        if self.path.exists():
            write_file(self.path, b"".join(kept))


def parse_line(line: bytes, path: Path, number: int) -> RoundRecord:
    """Return the record in one whole line of a records file.

    Args:
        line: the bytes of the line.
        path: the file, for the error message.
        number: number of the line, for the error message.

    Raises:
        RecordError: the line is no record. The message names file and line.
    """
    try:
        return RoundRecord.from_json(json.loads(line, parse_constant=_no_constant))
    except (ValueError, RecursionError, JsonTypeError) as error:
        raise RecordError(
            f"{path}, line {number}: expected the JSON record of a round, got {line[:60]!r} "
            f"({error}); move the file away or cut it before this line"
        ) from error


def read_records(run_dir: Path) -> list[RoundRecord]:
    """Return the records of a run in order, an empty list if none were written yet.

    Raises:
        RecordError: a line is damaged, or the rounds do not increase.
    """
    path = run_dir / RECORDS
    lines = enumerate(_whole_lines(path), start=1)
    records = [parse_line(line, path, number) for number, line in lines]
    for number, (before, after) in enumerate(pairwise(records), start=2):
        if after.round <= before.round:
            raise RecordError(
                f"{path}, line {number}: round {after.round} comes after round {before.round}; "
                "two runs wrote to this directory: give each run its own"
            )
    return records


def _whole_lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"the records cannot be read: {error}") from error
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
