"""AFL: minimise the worst mixture of the clients' losses.

Mohri, Sivek, Suresh. Agnostic Federated Learning. ICML 2019 (arXiv 1902.00146): descent on the
model, projected ascent on the mixture's weights lambda in the simplex.

Where we depart: clients take K local steps, not one, and so their displacements stand where the
gradients do. lambda belongs to client ids, and rounds with some of the clients, which the paper
does not have, go by a rule of ours: the cohort's lambdas divided by their sum (1/m if that is 0)
weigh the step, only they rise, and all N are projected. The last iterate is evaluated unless
`average` asks for the mean of all, which the paper and the published codes report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from common.geometry import project_onto_simplex
from common.layout import Layout
from common.methods.base import Method
from common.settings import setting
from common.types import LOSS_BEFORE, ClientId, Cohort, Step, Vector

HUGE = 1e300  # rises above this count as this; sums of them still exist


@dataclass(frozen=True)
class MixtureWeights:
    """The weights of the clients' losses, and how far the mean iterate is from the newest.

    Attributes:
        lambdas: weight by client, for all that were ever seen.
        unseen: weight of all others together; they never rose, so they share it equally, however
            many they are by now.
        rounds: accepted rounds t.
        offset: mean of the iterates 1 to t minus the newest [d], in units of the direction; None
            where the mean is not asked for.
    """

    lambdas: dict[ClientId, float] = field(default_factory=dict)
    unseen: float = 1.0
    rounds: int = 0
    offset: Vector | None = None

    def with_clients(self, cohort: Sequence[ClientId], clients: int) -> "MixtureWeights":
        """Return the same weights, with the cohort's shares of `unseen` under their own names."""
        new = [client for client in cohort if client not in self.lambdas]
        others = max(clients - len(self.lambdas), len(new))
        each = self.unseen / max(others, 1)
        lambdas = self.lambdas | dict.fromkeys(new, each)
        return replace(self, lambdas=lambdas, unseen=each * (others - len(new)))

    def ascended(self, rises: Mapping[ClientId, float], clients: int) -> "MixtureWeights":
        """Add to the weights and project them, the unseen clients' among them."""
        seen = len(self.lambdas)
        others = max(clients - seen, 0)
        values = [weight + rises.get(client, 0.0) for client, weight in self.lambdas.items()]
        values += [self.unseen / max(others, 1)] * others
        weights = project_onto_simplex(np.array(values)).tolist()
        lambdas = dict(zip(self.lambdas, weights[:seen], strict=True))
        return replace(self, lambdas=lambdas, unseen=sum(weights[seen:], 0.0))


@dataclass(frozen=True)
class AFL(Method[MixtureWeights]):
    """The cohort's displacements, weighted by lambda; then lambda follows the losses."""

    name: ClassVar[str] = "afl"
    source: ClassVar[str] = "Mohri, Sivek, Suresh, ICML 2019"
    needs: ClassVar[tuple[str, ...]] = (LOSS_BEFORE,)

    eta_lambda: float = setting(
        0.1, "step of lambda per nat of loss; 0 leaves all clients at 1/N", low=0
    )
    average: bool = setting(
        False, "evaluate the mean of the models of all rounds instead of the newest"
    )

    def init(self, layout: Layout) -> MixtureWeights:
        """Return 1/N for every client."""
        return MixtureWeights()

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d for the mean iterate, where it is asked for; the lambdas are no vectors."""
        return layout.size if self.average else 0

    def aggregate(
        self, cohort: Cohort, state: MixtureWeights, layout: Layout
    ) -> Step[MixtureWeights]:
        """Step by the old lambdas, then let the cohort's rise by eta_lambda * F_i."""
        present = [update.client for update in cohort.updates]
        mixture = state.with_clients(present, cohort.clients)
        held = np.array([mixture.lambdas[client] for client in present])
        total = float(held.sum())
        shares = held / total if total > 0 else cohort.equal_shares
        direction = cohort.mean(shares)

        losses = np.minimum(cohort.metric(LOSS_BEFORE), HUGE / max(self.eta_lambda, 1.0))
        rises = cohort.by_client(self.eta_lambda * losses)
        after = mixture.ascended(rises, cohort.clients)
        report = {
            "weights": cohort.by_client(shares),
            "lambda_cohort": total,
            "lambda_unseen": after.unseen,
            "lambda_largest": max(after.lambdas.values()),
        }
        after = replace(after, rounds=state.rounds + 1)
        if self.average:
            after = replace(after, offset=self._offset(after.rounds, state.offset, direction))
        return Step(direction, after, report)

    def _offset(self, t: int, before: Vector | None, direction: Vector) -> Vector:
        """Return o_t = (t - 1)/t * (o_{t-1} + direction_t), the mean iterate minus the newest."""
        moved: Vector = direction if before is None else before + direction
        offset: Vector = moved * direction.dtype.type((t - 1) / t)
        return offset

    def evaluation_offset(self, state: MixtureWeights) -> Vector | None:
        """Return the way from the newest iterate to the mean of all, where it is asked for."""
        return state.offset
