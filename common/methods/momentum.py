"""Client weights that grow with momentum, shared by FedHEAL and FedPW."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.types import ClientId


@dataclass(frozen=True)
class Momentum:
    """A weight for every client seen so far, and its last increment.

    Attributes:
        weights: P_i by client.
        trends: dP_i by client, a running mean of the client's shares.
    """

    weights: dict[ClientId, float] = field(default_factory=dict)
    trends: dict[ClientId, float] = field(default_factory=dict)

    def updated(
        self, shares: Mapping[ClientId, float], rate: float, start: float = 0.0
    ) -> "Momentum":
        """Take dP_i <- (1 - rate) dP_i + rate * share_i and P_i <- P_i + dP_i for these clients.

        Args:
            shares: share by client. All other clients keep their weights.
            rate: weight of the new share in dP_i.
            start: P_i of a client without an entry. Its dP_i is 0.
        """
        trends = {
            client: (1 - rate) * self.trends.get(client, 0.0) + rate * share
            for client, share in shares.items()
        }
        weights = {
            client: self.weights.get(client, start) + trend for client, trend in trends.items()
        }
        return Momentum(self.weights | weights, self.trends | trends)
