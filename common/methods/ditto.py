"""Ditto: the usual model for all, and beside it a model of its own for every client.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021
(arXiv 2012.04221), Algorithm 1.

Where we depart: a client's own model starts as the first one that the client receives, where the
published code starts all of them as the model of round 0, which a client that joins later never
saw; and its steps are as many as those on the model for all, over the same batches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from common.methods.base import proximal_problems
from common.methods.fedavg import FedAvg
from common.settings import setting


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg; a client's own model v minimises its loss + lambda/2 |v - w_received|^2."""

    name: ClassVar[str] = "ditto"
    source: ClassVar[str] = "Li et al., ICML 2021"

    lam: float = setting(
        0.1, "lambda, how strongly a client's own model is pulled to the one for all", low=0
    )

    def personal_proximal_weight(self) -> float | None:
        """Return lambda."""
        return self.lam

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Refuse a pull so strong that the clients' own models diverge."""
        return proximal_problems("ditto.lam", self.lam, lr)

    @classmethod
    def neutral(cls) -> "Ditto":
        """The model for all is FedAvg's, whatever lambda is."""
        return cls()
