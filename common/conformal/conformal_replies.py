"""The replies of clients during calibration: counts, as tables for a ConfigRecord.

First each client counts the scores of its calibration samples in bins. Then, given thresholds, it
counts on its test samples how large the sets are and how many contain the true label. Scores and
samples stay on the client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from common.conformal.prediction_sets import SCORES, Counts, Tally
from common.errors import WireError

CALIBRATE, COVER = "calibrate", "cover"  # Flower's actions: "evaluate.calibrate"
EXAMPLES, CORRECT = "examples", "correct"
MAX_COUNT = 2**40  # largest count, so that sums over bins and clients fit into int64


def ask(thresholds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the request for coverage: the thresholds of each score, one for each level."""
    return {f"thresholds.{score}": list(values) for score, values in thresholds.items()}


def read_coverage_request(table: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the thresholds of each score.

    Raises:
        WireError: a score has no thresholds, or they are not numbers.
    """
    asked = {}
    for score in SCORES:
        asked[score] = values = _list(table, f"thresholds.{score}")
        if not all(isinstance(value, float) and not isnan(value) for value in values):
            raise WireError(f'expected "thresholds.{score}" as numbers, got {values!r}')
    return asked


@dataclass(frozen=True)
class CalibrationReply:
    """The counted scores of a client's calibration samples.

    Attributes:
        examples: number of samples.
        counts: histogram [bins] by score.
    """

    examples: int
    counts: Mapping[str, Counts]

    def table(self) -> dict[str, Any]:
        """Return the table that is sent."""
        counts = {f"counts.{score}": counts.tolist() for score, counts in self.counts.items()}
        return {EXAMPLES: self.examples, **counts}

    @classmethod
    def read(cls, table: Mapping[str, Any], bins: int) -> "CalibrationReply":
        """Read and check a table.

        Raises:
            WireError: the table does not hold the counts of that many samples.
        """
        examples = _number(table, EXAMPLES)
        counts = {score: _counts(table, f"counts.{score}", bins) for score in SCORES}
        for score, histogram in counts.items():
            if (total := histogram.sum()) != examples:
                raise WireError(f"{total} scores of {score} were counted on {examples} samples")
        return cls(examples, counts)


@dataclass(frozen=True)
class CoverageReply:
    """The counted sets of a client's test samples.

    Attributes:
        examples: number of samples.
        correct: number of samples whose most likely label is right.
        tallies: by score, one tally for each requested level.
    """

    examples: int
    correct: int
    tallies: Mapping[str, list[Tally]]

    def table(self) -> dict[str, Any]:
        """Return the table that is sent: each score's levels one after the other."""
        table: dict[str, Any] = {EXAMPLES: self.examples, CORRECT: self.correct}
        for score, tallies in self.tallies.items():
            table[f"sizes.{score}"] = np.concatenate([t.sizes for t in tallies]).tolist()
            table[f"covered.{score}"] = np.concatenate([t.covered for t in tallies]).tolist()
        return table

    @classmethod
    def read(cls, table: Mapping[str, Any], levels: int, classes: int) -> "CoverageReply":
        """Read and check a table.

        Args:
            table: the reply's table.
            levels: number of requested levels.
            classes: number of classes, C.

        Raises:
            WireError: the counts are impossible, or not those of that many samples and levels.
        """
        examples, correct = _number(table, EXAMPLES), _number(table, CORRECT)
        if correct > examples:
            raise WireError(f"{correct} correct answers of {examples} are impossible")
        shape = (levels, classes + 1)
        tallies = {}
        for score in SCORES:
            sizes = _counts(table, f"sizes.{score}", levels * (classes + 1)).reshape(shape)
            covered = _counts(table, f"covered.{score}", levels * (classes + 1)).reshape(shape)
            if (sizes.sum(axis=1) != examples).any():
                raise WireError(f"the sets of {score} that were counted are not {examples} a level")
            if (covered > sizes).any() or sizes[:, 0].any():
                raise WireError(f"more sets of {score} hold the true label than there are, or none")
            tallies[score] = [Tally(*pair) for pair in zip(sizes, covered, strict=True)]
        return cls(examples, correct, tallies)


def _number(table: Mapping[str, Any], key: str) -> int:
    value = table.get(key)
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise WireError(f'expected "{key}" as a whole number from 0 to {MAX_COUNT}, got {value!r}')
    return value


def _list(table: Mapping[str, Any], key: str) -> list[Any]:
    values = table.get(key)
    if not isinstance(values, list):
        raise WireError(f'expected "{key}" as a list of numbers, got {values!r}')
    return values


def _counts(table: Mapping[str, Any], key: str, length: int) -> Counts:
    values = _list(table, key)
    if len(values) != length or not all(type(v) is int and 0 <= v <= MAX_COUNT for v in values):
        raise WireError(
            f'expected "{key}" as {length} whole numbers from 0 to {MAX_COUNT}, got {len(values)} '
            f"values such as {values[:3]}; client and server need the same version and the same "
            "settings"
        )
    return np.array(values, dtype=np.int64)
