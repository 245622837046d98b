"""FedDyn: local losses are bent so that their optima and that of the mean loss coincide.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021 (arXiv 2111.04263), Algorithm 1. Client i minimises

    F_i(w) - G_i . w + alpha/2 |w - theta|^2,   then   G_i <- G_i + alpha Delta_i,

and the server takes theta <- mean of the round's theta_i - h/alpha, h the mean of all N clients'
G_i (which is what the paper's h <- h + alpha/N sum Delta_i adds up to).

Where we depart: the server, not the client, keeps every G_i and works it out from the reply, so
that a client that restarts or whose reply is dropped is not left with a G_i that the server's h
does not know of. So -G_i goes down to a client that returns: 3 models a round for it instead of
2. Clients weigh the same; the published code's alpha_i by their examples are not offered. What is
evaluated is theta; "active" takes the mean of the round's client models, as the published code.
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
        "the model that is evaluated and kept: server, or active, the mean of the round's clients'",
        choices=("server", "active"),
    )

    def init(self, layout: Layout) -> ControlVariates:
        """Return h = G_i = 0."""
        return ControlVariates(np.zeros(layout.size))

    def server_payload(self, state: ControlVariates, client: ClientId) -> Mapping[str, Vector]:
        """Send -G_i [d] to a client that was seen before; it is zero for all others."""
        own = state.own.get(client)
        return {} if own is None else {SHIFT: -own}

    def local_rule(self, server_payload: Mapping[str, Vector], layout: Layout) -> LocalRule:
        """Take the steps w <- w - lr (g - G_i + alpha (w - w_received)).

        Raises:
            WireError: what the server sent does not fit this client's model.
        """
        shift, block = server_payload.get(SHIFT), layout.everything
        check_payload_size(self.name, block, block.size if shift is None else shift.size)
        return LocalRule(shift=shift, block=block, proximal_weight=self.alpha)

    def aggregate(
        self, cohort: Cohort, state: ControlVariates, layout: Layout
    ) -> Step[ControlVariates]:
        """Replace the cohort's G_i, and with them h; return mean Delta_i + h/alpha."""
        arrived = {}
        for update in cohort.updates:
            gained = update.delta * update.delta.dtype.type(self.alpha)
            own = state.own.get(update.client)
            arrived[update.client] = gained if own is None else own + gained
        after = state.replaced(cohort.round, cohort.clients, arrived)
        lead = self._lead(after)
        report = {"gradients": len(after.own), "h_over_alpha": length(lead)}
        return Step(cohort.mean(cohort.equal_shares) + lead, after, report)

    def _lead(self, state: ControlVariates) -> Vector:
        """Return h/alpha [d], in the dtype of the displacements that came."""
        newest = next(iter(state.own.entries.values()))
        return (state.mean / self.alpha).astype(newest.vector.dtype)

    def evaluation_offset(self, state: ControlVariates) -> Vector | None:
        """Return h/alpha, the way back to the mean of the round's models, where it is asked for."""
        return self._lead(state) if self.evaluate == "active" and len(state.own) else None

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return that every client can have a G_i."""
        return clients

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats for every client and twice that for the float64 sum."""
        return layout.size * (clients + 2)

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the G_i as they were sent, the cohort's new ones beside the old, and h."""
        return (2 * cohort + 12) * layout.size

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Refuse momentum, which steps with a linear term do not have, and steps that diverge."""
        yield from proximal_problems("feddyn.alpha", self.alpha, lr)
        if momentum:
            yield f"train.momentum must be 0, not {momentum:g}: {self.name}'s steps are plain SGD"
