"""Ditto: the global model of FedAvg, and a personal model for every client.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021
(arXiv 2012.04221), Algorithm 1.

Where we depart: a personal model starts as the first model that its client receives. The published
code starts all of them as the model of round 0, which a client that joins later never received.
Personal and global model take the same number of steps over the same batches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from common.methods.base import proximal_problems
from common.methods.fedavg import FedAvg
from common.settings import setting


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg. A personal model v minimises the client's loss + lambda/2 |v - w_received|^2."""

    name: ClassVar[str] = "ditto"
    source: ClassVar[str] = "Li et al., ICML 2021"

    lam: float = setting(
        0.1,
        "lambda, weight of the proximal term that ties a personal model to the global one",
        low=0,
    )

    def personal_proximal_weight(self) -> float | None:
        """Return lambda."""
        return self.lam

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Yield a problem if lambda is so large that personal models diverge."""
        return proximal_problems("ditto.lam", self.lam, lr)

    @classmethod
    def neutral(cls) -> "Ditto":
        """Return the defaults: the global model is FedAvg's for every lambda."""
        return cls()
