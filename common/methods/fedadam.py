"""FedAdam: the server runs Adam on the mean displacement of the sampled clients.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021 (arXiv 2003.00295), Algorithm 2. With Delta the mean displacement of the cohort, for every
coordinate,

    m <- beta1 m + (1 - beta1) Delta
    v <- beta2 v + (1 - beta2) Delta^2
    w <- w - eta m / (sqrt(v) + tau),   m = 0 and v = tau^2 before round 1.

Adam's bias correction is absent, as in Algorithm 2: torch.optim.Adam divides m by 1 - beta1^t and v
by 1 - beta2^t, and starts with v = 0.

Where we depart: clients weigh by their examples unless `uniform` is set. `eta` is a setting of the
method, because Adam's step has the unit of the weights and a useful eta is far below 1; `server.lr`
multiplies it. The paper starts with any v >= tau^2, and we start with the smallest one.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.geometry import length
from common.layout import Layout
from common.methods.base import Granularity, Method
from common.settings import setting
from common.types import Cohort, Step, Vector


@dataclass(frozen=True)
class Moments:
    """Adam's running means, one number for every coordinate.

    Attributes:
        first: running mean m of the mean displacements [d].
        second: running mean v of their squares [d], float64, because float32 cannot hold the
            square of every float32.
    """

    first: Vector
    second: Vector


@dataclass(frozen=True)
class FedAdam(Method[Moments]):
    """One step of Adam per round, with the cohort's mean displacement as the gradient."""

    name: ClassVar[str] = "fedadam"
    source: ClassVar[str] = "Reddi et al., ICLR 2021"
    granularity: ClassVar[Granularity] = Granularity.COORDINATE

    eta: float = setting(
        0.01, "server step in units of the weights; server.lr multiplies it", low=0, open_low=True
    )
    beta1: float = setting(
        0.9, "share of the old first moment that stays each round", low=0, high=1, open_high=True
    )
    beta2: float = setting(
        0.99, "share of the old second moment that stays each round", low=0, high=1, open_high=True
    )
    tau: float = setting(
        0.001, "added to sqrt(v): larger values adapt less", low=0, high=1e6, open_low=True
    )
    uniform: bool = setting(False, "weigh every client 1/m instead of by its examples")

    def init(self, layout: Layout) -> Moments:
        """Return m = 0 [d] and v = tau^2 [d]."""
        return Moments(np.zeros(layout.size, np.float32), np.full(layout.size, self.tau**2))

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats for m and 2 d for v in float64."""
        return 3 * layout.size

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the new m and v, and the square, the root and the quotient in float64."""
        return 9 * layout.size

    def aggregate(self, cohort: Cohort, state: Moments, layout: Layout) -> Step[Moments]:
        """Update both moments and return eta m / (sqrt(v) + tau)."""
        mean = cohort.mean(cohort.equal_shares if self.uniform else cohort.shares)
        first = self.beta1 * state.first + (1 - self.beta1) * mean
        second = self.beta2 * state.second + (1 - self.beta2) * np.square(mean, dtype=np.float64)
        direction = (self.eta * first / (np.sqrt(second) + self.tau)).astype(mean.dtype)
        report = {"length_mean": length(mean), "length_m": length(first)}
        return Step(direction, Moments(first, second), report)
