"""Control variates on a block of the model, shared by SCAFFOLD and FedPVR.

Karimireddy et al., SCAFFOLD, ICML 2020 (arXiv 1910.06378), Algorithm 1, option II, restricted to
a block of coordinates by Li et al., CVPR 2023 (arXiv 2212.02191).

Where we depart: the server, not the client, stores every c_i. A client that restarts, or whose
reply is dropped, then leaves no half-updated variate. Only the difference c - c_i is sent, which is
all that the local steps and option II need: c_i+ = c_i - c + (w_received - w) / sum(lr).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from common.client_vectors import ClientVectors
from common.errors import WireError
from common.layout import Block, Layout
from common.methods.base import LocalRule, Method
from common.types import ClientId, Cohort, Step, Vector

SHIFT = "shift"  # c - c_i [v], server to client
VARIATE = "variate"  # c_i+ [v], client to server


@dataclass(frozen=True)
class ControlVariates:
    """The sum of all clients' control variates [v] in float64, and each client's last one [v].

    A client that was never seen counts as zero, so the server's c is total / N. FedDyn stores its
    clients' gradients in the same way.

    Attributes:
        total: sum of the clients' variates [v], float64.
        clients: number of clients of the federation, N.
        own: each client's variate [v] with the round it came in.
    """

    total: Vector
    clients: int = 0
    own: ClientVectors = field(default_factory=ClientVectors)

    @cached_property
    def mean(self) -> Vector:
        """The server's variate c [v], float64. All orders of a round share it."""
        return self.total / max(self.clients, 1)

    def replaced(
        self,
        round: int,  # noqa: A002 - the cohort's field
        clients: int,
        vectors: Mapping[ClientId, Vector],
    ) -> "ControlVariates":
        """Return a version in which these clients have new vectors.

        Args:
            round: the round's number.
            clients: number of clients of the federation, N.
            vectors: new vector [v] by client.
        """
        total = self.total.copy()
        for client, vector in vectors.items():
            total += vector
            if (previous := self.own.get(client)) is not None:
                total -= previous
        return ControlVariates(total, clients, self.own.put(round, vectors))


def check_payload_size(name: str, block: Block, sent: int) -> None:
    """Check that the payload has as many numbers as this client's block.

    Args:
        name: the method's name.
        block: the block on this client.
        sent: size of the vector that the server sent.

    Raises:
        WireError: the sizes differ.
    """
    if sent != block.size:
        raise WireError(
            f"{name} corrects {block.size} coordinates on this client, the server sent "
            f"{sent}; start both with the same run config"
        )


@dataclass(frozen=True)
class ControlVariateMethod(Method[ControlVariates]):
    """Base of SCAFFOLD and FedPVR, which choose the block and the averaging."""

    def corrected_block(self, layout: Layout) -> Block:
        """Return the coordinates that get a control variate."""
        raise NotImplementedError

    def averaging_weights(self, cohort: Cohort) -> Vector:
        """Return the weights of the mean of the models [m]."""
        raise NotImplementedError

    def init(self, layout: Layout) -> ControlVariates:
        """Return c = c_i = 0."""
        return ControlVariates(np.zeros(self.corrected_block(layout).size))

    def server_payload(self, state: ControlVariates, client: ClientId) -> Mapping[str, Vector]:
        """Send c - c_i [v]. Send nothing if the block is empty."""
        if not state.total.size:
            return {}
        own = state.own.get(client)
        return {SHIFT: state.mean if own is None else state.mean - own}

    def local_rule(self, server_payload: Mapping[str, Vector], layout: Layout) -> LocalRule:
        """Take the steps w <- w - lr (g - c_i + c) on the block.

        Raises:
            WireError: the payload does not fit this client's block.
        """
        shift, block = server_payload.get(SHIFT), self.corrected_block(layout)
        check_payload_size(self.name, block, 0 if shift is None else shift.size)
        return LocalRule(shift=shift, block=block)

    def client_payload(
        self,
        server_payload: Mapping[str, Vector],
        layout: Layout,
        received: Vector,
        reached: Vector,
        lr_sum: float,
    ) -> Mapping[str, Vector]:
        """Send option II's c_i+ [v]. `lr_sum` is the sum over the steps that were taken."""
        if SHIFT not in server_payload:
            return {}
        block = self.corrected_block(layout)
        variate = block.take(received)
        variate -= block.take(reached)
        variate /= variate.dtype.type(lr_sum)
        variate -= server_payload[SHIFT]
        return {VARIATE: variate}

    def expected_payload(self, state: ControlVariates) -> Mapping[str, int]:
        """Return the size v of c_i+ if the block is not empty."""
        return {VARIATE: state.total.size} if state.total.size else {}

    def aggregate(
        self, cohort: Cohort, state: ControlVariates, layout: Layout
    ) -> Step[ControlVariates]:
        """Average the models, replace the cohort's c_i, and move c by (1/N) sum (c_i+ - c_i)."""
        direction = cohort.mean(self.averaging_weights(cohort))
        if not state.total.size:
            return Step(direction, state)
        variates = {update.client: update.client_payload[VARIATE] for update in cohort.updates}
        next_state = state.replaced(cohort.round, cohort.clients, variates)
        length = float(np.linalg.norm(next_state.total)) / cohort.clients
        report = {"variates": len(next_state.own), "length_c": length}
        return Step(direction, next_state, report)

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return N if the block is not empty, else 0."""
        return clients if self.corrected_block(layout).size else 0

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return v floats for every client and twice that for the float64 sum."""
        return self.corrected_block(layout).size * (clients + 2)

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the new sum, c and a new c_i in float64, besides the old sum."""
        return 6 * self.corrected_block(layout).size

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Refuse settings with which (w_received - w) / sum(lr) is not a mean gradient."""
        advice = f"{self.name} estimates mean gradients from plain SGD steps (option II)"
        if momentum:
            yield f"train.momentum must be 0, not {momentum:g}: {advice}"
        if weight_decay:
            yield f"train.weight-decay must be 0, not {weight_decay:g}: {advice}"
