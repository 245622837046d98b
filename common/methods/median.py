"""Median: per coordinate, the median of the cohort's displacements.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018 (arXiv 1803.01498), Definition 1 and Algorithm 1 (option I). With an even number of
clients it is the mean of the two middle entries.

Where we depart: as for the trimmed mean (`trimmed_mean.py`).
"""

from dataclasses import dataclass
from typing import ClassVar

from common.layout import Layout
from common.methods.base import Method
from common.methods.trimmed_mean import middle_mean, sorting_floats
from common.types import Cohort, Step


@dataclass(frozen=True)
class Median(Method[None]):
    """The median of every coordinate."""

    name: ClassVar[str] = "median"
    source: ClassVar[str] = "Yin et al., ICML 2018"

    def init(self, layout: Layout) -> None:
        """The median has no state."""

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the floats of a block and of its sorted copy."""
        return sorting_floats(cohort)

    def aggregate(self, cohort: Cohort, state: None, layout: Layout) -> Step[None]:
        """Return the coordinate-wise median [d]."""
        return Step(middle_mean(cohort, (len(cohort.updates) - 1) // 2), None)
