"""FedAvg: average the locally trained models, weighted by their numbers of examples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017 (arXiv 1602.05629), Algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from common.layout import Layout
from common.methods.base import Method
from common.settings import setting
from common.types import Cohort, Step, Vector


@dataclass(frozen=True)
class FedAvg(Method[None]):
    """The mean displacement of the cohort, weighted by shares of the cohort's examples."""

    name: ClassVar[str] = "fedavg"
    source: ClassVar[str] = "McMahan et al., AISTATS 2017"

    uniform: bool = setting(False, "weigh every client 1/m instead of by its examples")

    def init(self, layout: Layout) -> None:
        """FedAvg has no state."""

    def aggregate(self, cohort: Cohort, state: None, layout: Layout) -> Step[None]:
        """Return the mean displacement [d]."""
        return Step(cohort.mean(self.averaging_weights(cohort)), None)

    def averaging_weights(self, cohort: Cohort) -> Vector:
        """Return the shares of the examples [m], or 1/m each."""
        return cohort.equal_shares if self.uniform else cohort.shares

    @classmethod
    def neutral(cls) -> "FedAvg | None":
        """Return FedAvg itself."""
        return cls()
