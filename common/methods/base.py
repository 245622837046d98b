"""The interface of a federated method: settings, payloads, the client's rule and the aggregation.

A method is a frozen dataclass. Its fields are the typed settings. Everything that it remembers from
round to round is a value of type S, which `aggregate` returns. No method keeps anything in an
attribute.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from common.layout import Block, Layout
from common.settings import Settings
from common.types import ClientId, Cohort, Step, Vector

S = TypeVar("S")

NO_BLOCK = Block(())


class Granularity(Enum):
    """The parts of the vector in which identical clients are led where FedAvg leads them.

    A method that scales parts of the model differently does not keep the direction of the whole.
    """

    MODEL = "model"  # the whole step has the direction of the clients' displacement
    TENSOR = "tensor"  # the step of every tensor has the direction of its displacement
    COORDINATE = "coordinate"  # the step of every coordinate has the sign of its displacement


@dataclass(frozen=True)
class LocalRule:
    """The terms that a method adds to local SGD: w <- w - lr (gradient + shift + proximal term).

    Attributes:
        shift: constant vector [v] added to each mini-batch gradient on `block`.
        block: the coordinates that `shift` corrects. They take plain SGD without momentum.
        proximal_weight: adds proximal_weight * (w - anchor) on all coordinates.
        anchor: center of the proximal term [d]. None: the weights before the first local step.
        momentum: heavy-ball momentum outside `block`. None: the run's train.momentum.
        full_batch: take a single step with the gradient of all samples.
    """

    shift: Vector | None = None
    block: Block = NO_BLOCK
    proximal_weight: float = 0.0
    anchor: Vector | None = None
    momentum: float | None = None
    full_batch: bool = False


def proximal_problems(setting: str, proximal_weight: float, lr: float) -> Iterable[str]:
    """Yield a problem if proximal steps diverge, which they do for lr * proximal_weight > 2.

    Args:
        setting: the config key of the proximal weight.
        proximal_weight: factor of w - anchor in the gradient.
        lr: local learning rate.
    """
    if lr * proximal_weight > 2:
        yield (
            f"{setting} * train.lr must be at most 2, not {proximal_weight:g} * {lr:g}: the local "
            "steps would diverge"
        )


@dataclass(frozen=True)
class Method(Settings, Generic[S]):
    """Base of all methods. It adds nothing to local training and sends no payload."""

    name: ClassVar[str]
    source: ClassVar[str]  # the paper
    needs: ClassVar[tuple[str, ...]] = ()  # metrics of every reply: LOSS, LOSS_BEFORE, STEPS
    granularity: ClassVar[Granularity] = Granularity.MODEL

    def init(self, layout: Layout) -> S:
        """Return the state before round 1."""
        raise NotImplementedError

    def server_payload(self, state: S, client: ClientId) -> Mapping[str, Vector]:
        """Return the vectors that the server sends to this client besides the model, by name."""
        return {}

    def local_rule(self, server_payload: Mapping[str, Vector], layout: Layout) -> LocalRule:
        """Return the terms that the client adds to its local steps (runs on the client).

        Args:
            server_payload: the vectors that came with the order, by name.
            layout: layout of the model.
        """
        return LocalRule()

    def client_payload(
        self,
        server_payload: Mapping[str, Vector],
        layout: Layout,
        received: Vector,
        reached: Vector,
        lr_sum: float,
    ) -> Mapping[str, Vector]:
        """Return the vectors that the client sends back besides the model (runs on the client).

        Args:
            server_payload: the vectors that came with the order, by name.
            layout: layout of the model.
            received: weights that came with the order [d].
            reached: weights after the local steps [d]. They are valid during this call only.
            lr_sum: sum of the learning rates of the local steps, K * lr for a constant rate.
        """
        return {}

    def expected_payload(self, state: S) -> Mapping[str, int]:
        """Return the name and size of each vector that a reply must contain."""
        return {}

    def aggregate(self, cohort: Cohort, state: S, layout: Layout) -> Step[S]:
        """Turn a round's accepted replies into a step and the next state. Pure.

        Args:
            cohort: the accepted replies, sorted by client.
            state: the state before the round. It is not modified.
            layout: layout of the model, with d floats.

        Raises:
            AggregationError: no step can be formed from these replies.
        """
        raise NotImplementedError

    def personal_proximal_weight(self) -> float | None:
        """Return the weight of the proximal term of a personal model, or None if there is none.

        A personal model is trained besides the global model. It stays on its client, and is
        evaluated there as well.
        """
        return None

    def evaluation_offset(self, state: S) -> Vector | None:
        """Return the offset [d] from the model to train on to the model to evaluate and to keep.

        The model to evaluate is w + server_lr * offset. None: both are the same model.
        """
        return None

    @property
    def history_rounds(self) -> int | None:
        """Largest age in rounds, H, of an absent client's displacement that still counts.

        None: the method stores no displacements, or has no such limit.
        """
        return None

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the largest number of clients whose vectors the state can hold between rounds.

        Args:
            layout: layout of the model, with d floats.
            clients: number of clients of the federation, N.
            cohort: number of clients of a round, m.
        """
        return 0

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the largest number of floats in the state's vectors between rounds.

        Args:
            layout: layout of the model, with d floats.
            clients: number of clients of the federation, N.
            cohort: number of clients of a round, m.
        """
        return 0

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the most floats that `aggregate` needs besides state, replies and model.

        They are matrices of inner products, which the state may keep, and copies of many clients'
        vectors. A float64 counts as two floats.

        Args:
            layout: layout of the model, with d floats.
            clients: number of clients of the federation, N.
            cohort: number of clients of a round, m.
        """
        return 0

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Yield each reason why the run's local optimiser cannot be used with this method.

        Args:
            lr: local learning rate of round 1.
            momentum: local momentum.
            weight_decay: local weight decay.
        """
        return ()

    @classmethod
    def neutral(cls) -> "Method[S] | None":
        """Return the settings that make the method FedAvg bit for bit, or None."""
        return None
