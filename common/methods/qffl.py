"""q-FFL, solved by q-FedAvg: clients with larger losses weigh more.

Li, Sanjabi, Beirami, Smith. Fair Resource Allocation in Federated Learning. ICLR 2020
(arXiv 1905.10497), Algorithm 2, which minimises sum_i p_i/(q+1) F_i^(q+1) with

    g_i = L Delta_i,  D_i = F_i^q g_i,  h_i = q F_i^(q-1) |g_i|^2 + L F_i^q,
    theta <- theta - sum_i D_i / sum_i h_i,  L = 1 / the round's local learning rate.

Where we depart: 1e-10 is added to every F_i, as in the published code, because F^(q-1) has no value
at 0 for q < 1. The weights are computed relative to the largest F_i, which cancels, so that no
power overflows. The sums contain no p_i, as in the paper, where p_i is the probability that a
client is sampled. Our sampling probabilities are equal.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.geometry import inner_products
from common.layout import Layout
from common.methods.base import Method
from common.settings import setting
from common.types import LOSS_BEFORE, Cohort, Step

TINY = 1e-10  # nats


@dataclass(frozen=True)
class QFFL(Method[None]):
    """Displacements weighted by F_i^q. Losses and lengths determine the step's length."""

    name: ClassVar[str] = "qffl"
    source: ClassVar[str] = "Li, Sanjabi et al., ICLR 2020"
    needs: ClassVar[tuple[str, ...]] = (LOSS_BEFORE,)

    q: float = setting(0.1, "how much more a larger loss weighs; 0 is the plain mean", low=0)

    def init(self, layout: Layout) -> None:
        """q-FFL has no state."""

    def aggregate(self, cohort: Cohort, state: None, layout: Layout) -> Step[None]:
        """Return sum_i D_i / sum_j h_j, with both sums divided by L and the largest F^q."""
        losses = cohort.metric(LOSS_BEFORE) + TINY
        powers = (losses / losses.max()) ** self.q
        lipschitz = 1 / cohort.local_lr
        squares = [inner_products([u.delta], [u.delta])[0, 0] for u in cohort.updates]
        scale = powers * (1 + self.q * lipschitz * np.array(squares) / losses)
        weights = powers / scale.sum()
        report = {
            "weights": cohort.by_client(weights),
            "weight_sum": float(weights.sum()),  # below 1: the step is that much shorter
        }
        return Step(cohort.mean(weights), None, report)
