"""FedDyn: a dynamic regulariser lets the optima of the local losses and of the mean loss coincide.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021 (arXiv 2111.04263), Algorithm 1. Client i minimises

    F_i(w) - G_i . w + alpha/2 |w - theta|^2,   then   G_i <- G_i + alpha Delta_i.

The server takes theta <- mean of the round's theta_i - h/alpha, with h the mean of all N clients'
G_i. This is the sum of the paper's updates h <- h + alpha/N sum Delta_i.

Where we depart:
- The server stores every G_i and computes it from the reply. A client that restarts, or whose reply
  is dropped, then never has a G_i that the server's h does not include. In return, -G_i is sent to
  every client that returns: 3 models per round instead of 2.
- All clients weigh the same. The published code's alpha_i by examples is not offered.
- theta is evaluated. With "active" it is the mean of the round's client models, as in the published
  code.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.geometry import length
from common.layout import Layout
from common.methods.base import LocalRule, Method, proximal_problems
from common.methods.variates import SHIFT, ControlVariates, check_payload_size
from common.settings import setting
from common.types import ClientId, Cohort, Step, Vector


@dataclass(frozen=True)
class FedDyn(Method[ControlVariates]):
    """A linear and a proximal term on the client, the mean of the G_i on the server."""

    name: ClassVar[str] = "feddyn"
    source: ClassVar[str] = "Acar et al., ICLR 2021"

    alpha: float = setting(0.01, "weight of the dynamic regulariser", low=1e-6)
    evaluate: str = setting(
        "server",
        "the model to evaluate and keep: server, or active, the mean of the round's client models",
        choices=("server", "active"),
    )

    def init(self, layout: Layout) -> ControlVariates:
        """Return h = G_i = 0."""
        return ControlVariates(np.zeros(layout.size))

    def server_payload(self, state: ControlVariates, client: ClientId) -> Mapping[str, Vector]:
        """Send -G_i [d] to a client that was seen before. It is zero for all others."""
        own = state.own.get(client)
        return {} if own is None else {SHIFT: -own}

    def local_rule(self, server_payload: Mapping[str, Vector], layout: Layout) -> LocalRule:
        """Take the steps w <- w - lr (g - G_i + alpha (w - w_received)).

        Raises:
            WireError: the payload does not fit this client's model.
        """
        shift, block = server_payload.get(SHIFT), layout.everything
        check_payload_size(self.name, block, block.size if shift is None else shift.size)
        return LocalRule(shift=shift, block=block, proximal_weight=self.alpha)

    def aggregate(
        self, cohort: Cohort, state: ControlVariates, layout: Layout
    ) -> Step[ControlVariates]:
        """Update the cohort's G_i and h, and return mean Delta_i + h/alpha."""
        gradients = {}
        for update in cohort.updates:
            change = update.delta * update.delta.dtype.type(self.alpha)
            own = state.own.get(update.client)
            gradients[update.client] = change if own is None else own + change
        after = state.replaced(cohort.round, cohort.clients, gradients)
        h_over_alpha = self._h_over_alpha(after)
        report = {"gradients": len(after.own), "h_over_alpha": length(h_over_alpha)}
        return Step(cohort.mean(cohort.equal_shares) + h_over_alpha, after, report)

    def _h_over_alpha(self, state: ControlVariates) -> Vector:
        """Return h/alpha [d] in the dtype of the displacements."""
        newest = next(iter(state.own.entries.values()))
        return (state.mean / self.alpha).astype(newest.vector.dtype)

    def evaluation_offset(self, state: ControlVariates) -> Vector | None:
        """Return h/alpha [d], the offset to the mean of the round's models."""
        return self._h_over_alpha(state) if self.evaluate == "active" and len(state.own) else None

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return N: every client can have a G_i."""
        return clients

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats for every client and twice that for the float64 sum."""
        return layout.size * (clients + 2)

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the G_i as sent, the cohort's new ones besides the old, and h."""
        return (2 * cohort + 12) * layout.size

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Yield a problem for local momentum, and for a diverging proximal term."""
        yield from proximal_problems("feddyn.alpha", self.alpha, lr)
        if momentum:
            yield f"train.momentum must be 0, not {momentum:g}: {self.name} takes plain SGD steps"
