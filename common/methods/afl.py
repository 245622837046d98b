"""AFL: minimise the worst mixture of the clients' losses.

Mohri, Sivek, Suresh. Agnostic Federated Learning. ICML 2019 (arXiv 1902.00146): gradient descent on
the model, projected gradient ascent on the mixture weights lambda in the simplex.

Where we depart:
- Clients take K local steps instead of one. Their displacements take the place of the gradients.
- The paper has all clients in every round. With sampled clients, the step uses their lambdas
  divided by the sum of these (1/m each if the sum is 0). Only the sampled clients' lambdas rise,
  and all N are projected.
- The newest model is evaluated. With `average` it is the mean of all rounds' models, which the
  paper and the published codes report.
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

MAX_INCREMENT = 1e300  # larger increments are clipped, so that sums stay finite


@dataclass(frozen=True)
class MixtureWeights:
    """The mixture weights lambda, and the distance of the mean model from the newest one.

    Attributes:
        lambdas: weight by client, for every client seen so far.
        unseen: total weight of all other clients. Their weights never rose, so they are equal.
        rounds: number of accepted rounds t.
        offset: mean of the models of rounds 1 to t minus the newest model [d], in units of the
            direction. None unless the mean is evaluated.
    """

    lambdas: dict[ClientId, float] = field(default_factory=dict)
    unseen: float = 1.0
    rounds: int = 0
    offset: Vector | None = None

    def with_clients(self, cohort: Sequence[ClientId], clients: int) -> "MixtureWeights":
        """Return the same weights, in which these clients have an entry of their own.

        Args:
            cohort: the clients of the round.
            clients: number of clients of the federation, N.
        """
        new = [client for client in cohort if client not in self.lambdas]
        others = max(clients - len(self.lambdas), len(new))
        unseen_weight = self.unseen / max(others, 1)
        lambdas = self.lambdas | dict.fromkeys(new, unseen_weight)
        return replace(self, lambdas=lambdas, unseen=unseen_weight * (others - len(new)))

    def ascended(self, increments: Mapping[ClientId, float], clients: int) -> "MixtureWeights":
        """Add the increments to the weights and project all N weights onto the simplex.

        Args:
            increments: the increment of lambda by client.
            clients: number of clients of the federation, N.
        """
        seen = len(self.lambdas)
        others = max(clients - seen, 0)
        values = [weight + increments.get(client, 0.0) for client, weight in self.lambdas.items()]
        values += [self.unseen / max(others, 1)] * others
        weights = project_onto_simplex(np.array(values)).tolist()
        lambdas = dict(zip(self.lambdas, weights[:seen], strict=True))
        return replace(self, lambdas=lambdas, unseen=sum(weights[seen:], 0.0))


@dataclass(frozen=True)
class AFL(Method[MixtureWeights]):
    """Mean of the cohort's displacements weighted by lambda. Then lambda follows the losses."""

    name: ClassVar[str] = "afl"
    source: ClassVar[str] = "Mohri, Sivek, Suresh, ICML 2019"
    needs: ClassVar[tuple[str, ...]] = (LOSS_BEFORE,)

    eta_lambda: float = setting(
        0.1, "step of lambda per nat of loss; 0 keeps all clients at 1/N", low=0
    )
    average: bool = setting(
        False, "evaluate the mean of the models of all rounds instead of the newest"
    )

    def init(self, layout: Layout) -> MixtureWeights:
        """Return lambda = 1/N for every client."""
        return MixtureWeights()

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d for the mean model if it is evaluated. The lambdas are not vectors."""
        return layout.size if self.average else 0

    def aggregate(
        self, cohort: Cohort, state: MixtureWeights, layout: Layout
    ) -> Step[MixtureWeights]:
        """Step with the old lambdas, then raise the cohort's by eta_lambda * F_i and project."""
        present = [update.client for update in cohort.updates]
        mixture = state.with_clients(present, cohort.clients)
        cohort_lambdas = np.array([mixture.lambdas[client] for client in present])
        total = float(cohort_lambdas.sum())
        shares = cohort_lambdas / total if total > 0 else cohort.equal_shares
        direction = cohort.mean(shares)

        losses = np.minimum(cohort.metric(LOSS_BEFORE), MAX_INCREMENT / max(self.eta_lambda, 1.0))
        increments = cohort.by_client(self.eta_lambda * losses)
        after = mixture.ascended(increments, cohort.clients)
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
        """Return o_t = (t - 1)/t * (o_{t-1} + direction_t) [d], the mean model minus the newest."""
        moved: Vector = direction if before is None else before + direction
        offset: Vector = moved * direction.dtype.type((t - 1) / t)
        return offset

    def evaluation_offset(self, state: MixtureWeights) -> Vector | None:
        """Return the offset [d] from the newest model to the mean of all models."""
        return state.offset
