"""What a run leaves behind: one JSON line per round, and how the run ended.

A run directory holds `config.toml`, `records.jsonl`, `outcome.json`, `weights.npz` and plots.
Undefined numbers are null: the files never hold a bare NaN. A line counts once its newline is
written; what stands behind the last newline is the torn end of a killed writer.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np

from common.errors import FedError
from common.io.files import atomic_write
from common.io.typed_json import FiniteFloat, Int64, JsonTypeError, from_json
from common.fairness import Fairness, fairness, clients_without_examples
from common.types import ClientId

CONFIG_FILE = "config.toml"
RECORDS = "records.jsonl"
OUTCOME = "outcome.json"
NO_EXAMPLES = "no test examples"

Status: TypeAlias = Literal["completed", "failed", "stopped"]


class RecordError(FedError):
    """A run's record cannot be written or read; the message names the file and line."""


@dataclass(frozen=True)
class ClientScore:
    """One client's evaluation: test examples > 0, how many were right, summed loss in nats."""

    examples: Int64
    correct: Int64
    loss_sum: FiniteFloat | None

    @property
    def accuracy(self) -> float:
        """Share of the examples that were right."""
        return self.correct / self.examples


@dataclass(frozen=True)
class Evaluation:
    """The model of one round on every client's test examples.

    Attributes:
        clients: the scores that came back.
        absent: why each other client has none.
        fairness: summary of the scores; None when nobody contributed.
        personal: the same for the clients' own models, where they have some.
        untrained: of `personal`: the clients whose own model is still the one they receive.
    """

    clients: dict[ClientId, ClientScore]
    absent: dict[ClientId, str]
    fairness: Fairness | None
    personal: "Evaluation | None" = None
    untrained: list[ClientId] = field(default_factory=list)

    @classmethod
    def of(
        cls, scores: Mapping[ClientId, ClientScore], absent: Mapping[ClientId, str]
    ) -> "Evaluation":
        """Summarise the scores; a client without test examples moves to `absent`.

        Raises:
            DataError: a client's counts are impossible.
        """
        counts = {client: (score.correct, score.examples) for client, score in scores.items()}
        empty = clients_without_examples(counts)
        return cls(
            clients={client: score for client, score in scores.items() if client not in empty},
            absent={**absent, **dict.fromkeys(empty, NO_EXAMPLES)},
            fairness=fairness(counts),
        )

    @property
    def accuracies(self) -> dict[ClientId, float]:
        """The accuracy of each client that has a score."""
        return {client: score.accuracy for client, score in self.clients.items()}

    @property
    def loss(self) -> float | None:
        """Mean loss per example over the clients whose loss is finite; None without any."""
        known = [(s.loss_sum, s.examples) for s in self.clients.values() if s.loss_sum is not None]
        finite = [(loss, examples) for loss, examples in known if isfinite(loss)]
        examples = sum(number for _, number in finite)
        return sum(loss for loss, _ in finite) / examples if examples else None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Evaluation":
        """Rebuild from what `json_values` made of it.

        Raises:
            JsonTypeError: a part is missing, or is not what it should be.
        """
        return from_json(cls, value).checked()

    def checked(self, *place: str) -> "Evaluation":
        """Return itself; `place` is where it stands in what was read.

        Raises:
            JsonTypeError: a client has other counts than 0 <= correct <= examples, examples >= 1.
        """
        for client, score in self.clients.items():
            if not 0 <= score.correct <= score.examples or not score.examples:
                came = f"{score.correct} of {score.examples}"
                problem = f"expected 0 <= correct <= examples, and at least one, got '{came}'"
                raise JsonTypeError(problem, (*place, "clients", client))
        if self.personal:
            self.personal.checked(*place, "personal")
        return self


@dataclass(frozen=True)
class RoundRecord:
    """Everything worth knowing about one round.

    Attributes:
        round: its number.
        lr: the learning rate the clients were told.
        cohort: clients asked to train.
        replied: clients whose replies were used.
        dropped: why the reply of a client was not used, or never came.
        void: why the round changed nothing; None for an ordinary round.
        train_loss: mean training loss, None when no client could tell.
        again: clients that were asked again because they had been lost on the way.
        late: what came too late, from earlier rounds.
        arrived: seconds from the order to the reply, by client.
        worked: seconds that a client itself counted: "start" (its process, where it has one of
            its own) and "work".
        bytes_down: bytes sent to each client for training.
        bytes_up: bytes that came back from each client.
        seconds: by phase: configure, train, aggregate, checkpoint, evaluate.
        method: the method's own report: numbers, bools, strings, short lists.
        diagnostics: what was looked at beside the model, in rounds that are diagnosed; see
            `server_app.diagnostics.diagnosis`.
        evaluation: None for a round that was not evaluated.
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
    seconds: dict[str, FiniteFloat] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RoundRecord":
        """Rebuild from one parsed line; fields that an older version did not write are empty.

        Raises:
            JsonTypeError: a part is missing, or is not what it should be.
        """
        record = from_json(cls, value)
        if record.evaluation:
            record.evaluation.checked("evaluation")
        return record

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; non-finite numbers become None.

        Raises:
            RecordError: the record holds something that JSON cannot say.
        """
        return {key: json_values(value, key) for key, value in vars(self).items()}


@dataclass(frozen=True)
class Outcome:
    """How a run ended: in words, after how many rounds and seconds."""

    status: Status
    message: str
    rounds: Int64
    seconds: FiniteFloat

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise RecordError(
                f'a run ends as one of {", ".join(get_args(Status))}, not as "{self.status}"'
            )


def json_values(value: Any, where: str) -> Any:
    """Turn a value into JSON's own types: numpy becomes Python, non-finite becomes None.

    Args:
        value: nested dicts, lists and dataclasses of scalars, strings, None, numpy scalars and
            arrays.
        where: the value's place in the record, for the error message.

    Raises:
        RecordError: a part has another type.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(part, f"{where}.{key}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(part, f"{where}[{index}]") for index, part in enumerate(value)]
    raise RecordError(
        f"{where} is a {type(value).__name__}, which a record cannot hold; "
        "give numbers, bools, strings, or lists and dicts of them"
    )


@dataclass(frozen=True)
class Recorder:
    """Writes the file at `path` (`records.jsonl` of a run directory), one line per record.

    No handle stays open between calls, and a line is on disk when `append` returns.
    """

    path: Path

    def append(self, record: RoundRecord) -> None:
        """Add one line; the torn end that a killed writer left is cut off first.

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
        """Drop the lines of rounds after `last`, for a resume from that round's checkpoint.

        Raises:
            RecordError: a line cannot be read or the file cannot be replaced.
        """
        lines = _whole_lines(self.path)
        rounds = [parse_line(line, self.path, n).round for n, line in enumerate(lines, start=1)]
        kept = [line for line, number in zip(lines, rounds, strict=True) if number <= last]
        if self.path.exists():
            _replace(self.path, b"".join(kept))


def parse_line(line: bytes, path: Path, number: int) -> RoundRecord:
    """Read one whole line of a records file.

    Raises:
        RecordError: it is no record; the message names file and line.
    """
    try:
        return RoundRecord.from_json(json.loads(line, parse_constant=_no_constant))
    except (ValueError, RecursionError, JsonTypeError) as error:
        raise RecordError(
            f"{path}, line {number}: expected the JSON record of a round, got {line[:60]!r} "
            f"({error}); move the file away or cut it before this line"
        ) from error


def read_records(run_dir: Path) -> list[RoundRecord]:
    """Return a run's records in order; an empty list when none were written yet.

    Raises:
        RecordError: a line is broken, or a round does not follow the one before it.
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


def write_outcome(run_dir: Path, outcome: Outcome) -> None:
    """Write `outcome.json` in one piece or not at all.

    Raises:
        RecordError: the file cannot be written.
    """
    text = json.dumps(json_values(outcome, "outcome"), allow_nan=False, indent=2) + "\n"
    _replace(run_dir / OUTCOME, text.encode())


def read_outcome(run_dir: Path) -> Outcome | None:
    """Return how the run ended, None while it has not.

    Raises:
        RecordError: the file is not an outcome.
    """
    path = run_dir / OUTCOME
    try:
        return from_json(Outcome, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, JsonTypeError) as error:
        raise RecordError(f"{path} does not say how a run ended: {error}") from error


def clear_outcome(run_dir: Path) -> None:
    """Forget how an earlier run in this directory ended, because it is about to go on."""
    (run_dir / OUTCOME).unlink(missing_ok=True)


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


def _replace(path: Path, data: bytes) -> None:
    try:
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error
