"""SCAFFOLD: control variates correct the drift of every coordinate, at 4x the model per round.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML 2020
(arXiv 1910.06378), Algorithm 1 with option II.
"""

from dataclasses import dataclass
from typing import ClassVar

from common.layout import Block, Layout
from common.methods.variates import ControlVariateMethod
from common.types import Cohort, Vector


@dataclass(frozen=True)
class Scaffold(ControlVariateMethod):
    """Control variates on all coordinates. Models are averaged with equal weights."""

    name: ClassVar[str] = "scaffold"
    source: ClassVar[str] = "Karimireddy et al., ICML 2020"

    def corrected_block(self, layout: Layout) -> Block:
        """Return all coordinates."""
        return layout.everything

    def averaging_weights(self, cohort: Cohort) -> Vector:
        """Return 1/m each, as in the paper."""
        return cohort.equal_shares
