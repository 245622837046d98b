"""What clients answer when sets of labels are calibrated: counts, as tables for a ConfigRecord.

First each client counts the scores of its calibration samples in bins; then, given thresholds, it
counts on its test samples how large the sets are and how many hold the true label. Scores and
samples stay where they are.
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
MOST = 2**40  # beyond, no count of samples; sums over all bins and clients stay whole numbers


def ask(thresholds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the question for coverage: thresholds by score, one for each level."""
    return {f"thresholds.{score}": list(values) for score, values in thresholds.items()}


def read_coverage_request(table: Mapping[str, Any]) -> dict[str, list[float]]:
    """Read the thresholds by score.

    Raises:
        WireError: a score has none, or they are no numbers.
    """
    asked = {}
    for score in SCORES:
        asked[score] = values = _list(table, f"thresholds.{score}")
        if not all(isinstance(value, float) and not isnan(value) for value in values):
            raise WireError(f'expected "thresholds.{score}" as numbers, got {values!r}')
    return asked


@dataclass(frozen=True)
class CalibrationReply:
    """The scores of a client's calibration samples, counted.

    Attributes:
        examples: how many samples.
        counts: a histogram by score [bins].
    """

    examples: int
    counts: Mapping[str, Counts]

    def table(self) -> dict[str, Any]:
        """Return what travels."""
        counts = {f"counts.{score}": counts.tolist() for score, counts in self.counts.items()}
        return {EXAMPLES: self.examples, **counts}

    @classmethod
    def read(cls, table: Mapping[str, Any], bins: int) -> "CalibrationReply":
        """Read and check.

        Raises:
            WireError: not the counts of that many samples.
        """
        examples = _number(table, EXAMPLES)
        counts = {score: _counts(table, f"counts.{score}", bins) for score in SCORES}
        for score, found in counts.items():
            if (total := found.sum()) != examples:
                raise WireError(f"{total} scores of {score} were counted on {examples} samples")
        return cls(examples, counts)


@dataclass(frozen=True)
class CoverageReply:
    """The sets of a client's test samples, counted.

    Attributes:
        examples: how many samples.
        correct: how many of them the model's likeliest label is right for.
        tallies: by score, one for each level that was asked for.
    """

    examples: int
    correct: int
    tallies: Mapping[str, list[Tally]]

    def table(self) -> dict[str, Any]:
        """Return what travels: each score's levels one after the other."""
        table: dict[str, Any] = {EXAMPLES: self.examples, CORRECT: self.correct}
        for score, tallies in self.tallies.items():
            table[f"sizes.{score}"] = np.concatenate([t.sizes for t in tallies]).tolist()
            table[f"covered.{score}"] = np.concatenate([t.covered for t in tallies]).tolist()
        return table

    @classmethod
    def read(cls, table: Mapping[str, Any], levels: int, classes: int) -> "CoverageReply":
        """Read and check.

        Raises:
            WireError: not the counts of that many samples and levels, or impossible ones.
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
    if type(value) is not int or not 0 <= value <= MOST:
        raise WireError(f'expected "{key}" as a whole number from 0 to {MOST}, got {value!r}')
    return value


def _list(table: Mapping[str, Any], key: str) -> list[Any]:
    values = table.get(key)
    if not isinstance(values, list):
        raise WireError(f'expected "{key}" as a list of numbers, got {values!r}')
    return values


def _counts(table: Mapping[str, Any], key: str, length: int) -> Counts:
    values = _list(table, key)
    if len(values) != length or not all(type(v) is int and 0 <= v <= MOST for v in values):
        raise WireError(
            f'expected "{key}" as {length} whole numbers from 0 to {MOST}, got {len(values)} '
            f"values such as {values[:3]}; both sides must run the same version, with the same "
            "settings"
        )
    return np.array(values, dtype=np.int64)
