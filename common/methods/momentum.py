"""Clients' weights with momentum, which FedHEAL and FedPW share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.types import ClientId


@dataclass(frozen=True)
class Momentum:
    """A weight for every client that was seen, and how fast it last grew.

    Attributes:
        weights: P_i by client.
        trends: dP_i by client, a running mean of the shares that the client had.
    """

    weights: dict[ClientId, float] = field(default_factory=dict)
    trends: dict[ClientId, float] = field(default_factory=dict)

    def updated(
        self, shares: Mapping[ClientId, float], rate: float, start: float = 0.0
    ) -> "Momentum":
        """Take dP_i <- (1 - rate) dP_i + rate * share_i and P_i <- P_i + dP_i for these clients.

        The others stay as they are; a client that is new begins at P_i = `start`, dP_i = 0.
        """
        trends = {
            client: (1 - rate) * self.trends.get(client, 0.0) + rate * share
            for client, share in shares.items()
        }
        weights = {
            client: self.weights.get(client, start) + trend for client, trend in trends.items()
        }
        return Momentum(self.weights | weights, self.trends | trends)
