"""FedNova: every client counts as if it had taken the cohort's effective number of local steps.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization. NeurIPS 2020 (arXiv 2007.07481), with plain SGD on the clients. There the
norm of the paper's vector a_i is the number of local steps tau_i, and

    w <- w - tau_eff sum_i p_i Delta_i / tau_i,   tau_eff = sum_i p_i tau_i,

with p_i the clients' shares of the examples. When all clients take the same number of steps, this
is FedAvg bit for bit.

Where we depart: p_i are shares of the sampled clients, as everywhere here. Local momentum is
refused: it changes a_i, and the server does not know the clients' momentum. The paper's proximal
and server-momentum variants are not offered.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.layout import Layout
from common.methods.fedavg import FedAvg
from common.types import STEPS, Cohort, Step


@dataclass(frozen=True)
class FedNova(FedAvg):
    """The mean of the displacements per local step, times the effective number of steps."""

    name: ClassVar[str] = "fednova"
    source: ClassVar[str] = "Wang et al., NeurIPS 2020"
    needs: ClassVar[tuple[str, ...]] = (STEPS,)

    def aggregate(self, cohort: Cohort, state: None, layout: Layout) -> Step[None]:
        """Return tau_eff sum_i p_i Delta_i / tau_i [d]."""
        shares = self.averaging_weights(cohort)
        steps = np.array([update.steps for update in cohort.updates], dtype=np.float64)
        # Relative to the smallest tau_i, so that equal tau_i give exactly tau_eff = tau_i.
        effective = steps.min() + shares @ (steps - steps.min())
        weights = shares * (effective / steps)
        report = {"weights": cohort.by_client(weights), "effective_steps": float(effective)}
        return Step(cohort.mean(weights), None, report)

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Refuse local momentum, which makes the norm of a_i another number than tau_i."""
        if momentum:
            yield (
                f"train.momentum must be 0, not {momentum:g}: {self.name} divides by the number of "
                "plain SGD steps"
            )

    @classmethod
    def neutral(cls) -> None:
        """FedNova has no setting that makes it FedAvg: equal numbers of steps do."""
