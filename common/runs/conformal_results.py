"""`conformal.json`: the prediction sets of a run's final model. Undefined numbers are null."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.io.typed_json import FiniteFloat, Int64, JsonTypeError, from_json
from common.runs.json_file import RecordError, write_json
from common.types import ClientId

CONFORMAL = "conformal.json"


@dataclass(frozen=True)
class Level:
    """The prediction sets of one score at one level, over the test samples of all clients.

    Attributes:
        miscoverage: the level, the share of sets that may miss the true label.
        rank: k, the rank of the threshold among the calibration scores.
        threshold: None if it is infinite, so that every set holds all labels.
        examples: number of test samples.
        coverage: share of the sets that hold the true label, None without test samples.
        mean_size: mean number of labels in a set, None without test samples.
        sizes: number of sets with 0, 1, ..., C labels [C + 1].
        coverage_by_size: coverage of the sets of each size [C + 1], None for a size without sets.
    """

    miscoverage: FiniteFloat
    rank: Int64
    threshold: FiniteFloat | None
    examples: Int64
    coverage: FiniteFloat | None
    mean_size: FiniteFloat | None
    sizes: list[Int64]
    coverage_by_size: list[FiniteFloat | None]


@dataclass(frozen=True)
class ClientCoverage:
    """The prediction sets of one client at the configured level.

    Attributes:
        calibration: number of calibration samples.
        test: number of test samples.
        coverage: share of the sets that hold the true label, None without test samples.
        mean_size: mean number of labels in a set, None without test samples.
    """

    calibration: Int64
    test: Int64
    coverage: FiniteFloat | None
    mean_size: FiniteFloat | None


@dataclass(frozen=True)
class ConformalResults:
    """The content of `conformal.json`.

    Attributes:
        round: round of the model.
        settings: settings `conformal.*` of the run.
        classes: number of classes, C.
        minimum: fewest calibration samples for a finite threshold at the configured level.
        examples: number of calibration samples of all clients.
        calibration: number of calibration samples by client, without clients that have none.
        uncalibrated: the reason why each other client has none.
        test: number of test samples by client, without clients that have none.
        untested: the reason why each other client has none.
        accuracy: share of the test samples whose likeliest label is the true one.
        scores: by score, its levels in ascending order.
        clients: by score, then by client, the prediction sets at the configured level.
        warnings: sentences for the reader of the results.
        problem: the reason why there are no prediction sets, None if there are.
    """

    round: Int64
    settings: dict[str, Any]
    classes: Int64
    minimum: Int64
    examples: Int64 = 0
    calibration: dict[ClientId, Int64] = field(default_factory=dict)
    uncalibrated: dict[ClientId, str] = field(default_factory=dict)
    test: dict[ClientId, Int64] = field(default_factory=dict)
    untested: dict[ClientId, str] = field(default_factory=dict)
    accuracy: FiniteFloat | None = None
    scores: dict[str, list[Level]] = field(default_factory=dict)
    clients: dict[str, dict[ClientId, ClientCoverage]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problem: str | None = None

    @property
    def miscoverage(self) -> float:
        """The configured level."""
        return float(self.settings["miscoverage"])

    def chosen(self, score: str) -> Level:
        """Return the prediction sets of a score at the configured level."""
        return next(row for row in self.scores[score] if row.miscoverage == self.miscoverage)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ConformalResults":
        """Return the results from parsed JSON.

        Raises:
            JsonTypeError: a part is missing or has the wrong type.
        """
        read = from_json(cls, value)
        level = read.settings.get("miscoverage")
        for score, rows in read.scores.items():
            if level not in [row.miscoverage for row in rows]:
                problem = f"expected settings.miscoverage among the levels, got {level}"
                raise JsonTypeError(problem, ("scores", score))
        return read


def write_conformal(run_dir: Path, results: ConformalResults) -> None:
    """Write `conformal.json` in one piece or not at all.

    Raises:
        RecordError: the file cannot be written.
    """
    write_json(run_dir / CONFORMAL, asdict(results), indent=1)


def read_conformal(run_dir: Path) -> ConformalResults | None:
    """Return the prediction sets of a run, None if it has none.

    Raises:
        RecordError: the file does not hold prediction sets.
    """
    path = run_dir / CONFORMAL
    try:
        return ConformalResults.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, JsonTypeError) as error:
        raise RecordError(f"{path} does not hold prediction sets: {error}") from error
