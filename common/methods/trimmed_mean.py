"""Trimmed mean: per coordinate, the mean of the displacements without the largest and smallest.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018 (arXiv 1803.01498), Definition 2 and Algorithm 1 (option II). Of m displacements
the floor(beta m) largest and the floor(beta m) smallest are left out, for every coordinate alone.

Where we depart: Algorithm 1 averages gradients of one step, and we average the displacements of
several local steps. Clients count equally, as in the paper: a client's number of examples has no
influence.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.layout import Layout
from common.methods.base import Method
from common.parallel import blocks, map_spans
from common.settings import setting
from common.types import Cohort, Step, Vector

BLOCK_COLUMNS = 2**14  # columns that are sorted at a time
ROUNDING = 1e-9  # added to beta m, because 0.29 * 100 is 28.999... in floating point


def middle_mean(cohort: Cohort, cut: int) -> Vector:
    """Return each coordinate's mean without its `cut` largest and `cut` smallest entries [d].

    Args:
        cohort: the accepted replies, m of them.
        cut: number of entries left out at either end, below m/2.
    """
    deltas = [update.delta for update in cohort.updates]
    result = np.empty_like(deltas[0])

    def reduce(span: slice) -> None:
        for columns in blocks(span, BLOCK_COLUMNS):
            ordered = np.sort([delta[columns] for delta in deltas], axis=0)
            middle = ordered[cut : len(deltas) - cut]
            result[columns] = middle.mean(axis=0, dtype=np.float64)

    map_spans(result.size, reduce)
    return result


def sorting_floats(cohort: int) -> int:
    """Return the floats that `middle_mean` needs: a block, its sorted copy, its float64 mean."""
    return (2 * cohort + 2) * BLOCK_COLUMNS


@dataclass(frozen=True)
class TrimmedMean(Method[None]):
    """The mean of each coordinate's middle entries."""

    name: ClassVar[str] = "trimmedmean"
    source: ClassVar[str] = "Yin et al., ICML 2018"

    beta: float = setting(
        0.2,
        "share of the cohort left out at either end of every coordinate",
        low=0,
        high=0.5,
        open_high=True,
    )

    def init(self, layout: Layout) -> None:
        """The trimmed mean has no state."""

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the floats of a block and of its sorted copy."""
        return sorting_floats(cohort)

    def aggregate(self, cohort: Cohort, state: None, layout: Layout) -> Step[None]:
        """Return the trimmed mean [d]."""
        cut = math.floor(self.beta * len(cohort.updates) + ROUNDING)
        return Step(middle_mean(cohort, cut), None, {"left_out": 2.0 * cut})
