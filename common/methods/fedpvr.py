"""FedPVR: control variates on the classifier layers only, where clients drift most.

Li, Schmidt, Alstrom, Stich. On the Effectiveness of Partial Variance Reduction in Federated
Learning with Heterogeneous Data. CVPR 2023 (arXiv 2212.02191), Algorithm 1 with option II.

Where we depart: the block is chosen by module name. The published code counts tensors from a
start index, which on ResNet-8 silently corrects three quarters of the model instead of its head.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from common.errors import ConfigError
from common.layout import Block, Layout
from common.methods.base import LocalRule
from common.methods.variates import ControlVariateMethod
from common.settings import setting
from common.types import Cohort, Vector


@dataclass(frozen=True)
class FedPVR(ControlVariateMethod):
    """Plain SGD on the feature extractor, variance-reduced SGD on `block`."""

    name: ClassVar[str] = "fedpvr"
    source: ClassVar[str] = "Li et al., CVPR 2023"

    block: str = setting(
        "classifier",
        'modules to correct: names separated by commas, "last:K" for the last K, "*" for all, '
        '"" for none',
    )
    uniform: bool = setting(True, "weigh every client 1/m, as the paper does")
    feature_momentum: float = setting(
        0.0,
        "momentum outside the block (the published runs use 0.9 for FedPVR alone)",
        low=0,
        high=1,
        open_high=True,
    )

    def corrected_block(self, layout: Layout) -> Block:
        """Return the coordinates of the named modules.

        Raises:
            ConfigError: the model has no such module, or not that many.
        """
        if last := re.fullmatch(r"last:([1-9]\d*)", self.block.strip()):
            if int(last[1]) > len(layout.modules):
                there_are = f"the model has {len(layout.modules)} modules"
                raise ConfigError(f'fedpvr.block is "{self.block}", but {there_are}')
            return layout.block(layout.modules[-int(last[1]) :])
        if self.block.strip().startswith("last:"):
            raise ConfigError(
                f'fedpvr.block: "last:K" takes a whole number K of at least 1, not "{self.block}"'
            )
        return layout.block([name.strip() for name in self.block.split(",") if name.strip()])

    def averaging_weights(self, cohort: Cohort) -> Vector:
        """Return 1/m each, or the shares of the examples [m]."""
        return cohort.equal_shares if self.uniform else cohort.shares

    def local_rule(self, server_payload: Mapping[str, Vector], layout: Layout) -> LocalRule:
        """Return SCAFFOLD's rule on the block, with momentum outside it if set."""
        return replace(super().local_rule(server_payload, layout), momentum=self.feature_momentum)

    @classmethod
    def neutral(cls) -> "FedPVR":
        """Return the empty block, with clients weighted by examples."""
        return cls(block="", uniform=False)
