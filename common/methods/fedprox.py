"""FedProx: FedAvg with a proximal term that keeps clients near the model they received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks.
MLSys 2020 (arXiv 1812.06127), Algorithm 2.

Where we depart: every client takes all its steps. The paper's partial work is not offered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from common.layout import Layout
from common.methods.base import LocalRule, proximal_problems
from common.methods.fedavg import FedAvg
from common.settings import setting
from common.types import Vector


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Each client minimises its loss + mu/2 |w - w_received|^2. The server averages."""

    name: ClassVar[str] = "fedprox"
    source: ClassVar[str] = "Li et al., MLSys 2020"

    mu: float = setting(0.01, "weight of the proximal term; 0 is FedAvg", low=0)

    def local_rule(self, server_payload: Mapping[str, Vector], layout: Layout) -> LocalRule:
        """Add mu (w - w_received) to each mini-batch gradient."""
        return LocalRule(proximal_weight=self.mu)

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Yield a problem if mu is so large that the local steps diverge."""
        return proximal_problems("fedprox.mu", self.mu, lr)

    @classmethod
    def neutral(cls) -> "FedProx":
        """Return mu = 0."""
        return cls(mu=0.0)
