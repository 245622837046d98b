"""What a federated method is: its settings, what goes down, what a client adds, what comes of it.

A method is a frozen dataclass; its fields are the typed hyper-parameters. Whatever it remembers
from round to round is a value of type S that `aggregate` returns; nothing is kept in attributes.
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
    """What a method adds to plain local SGD, w <- w - lr * (gradient + what follows).

    Attributes:
        shift: constant vector [v] added to each mini-batch gradient on `block`.
        block: the coordinates that `shift` corrects; they take plain SGD without momentum.
        proximal_weight: adds proximal_weight * (w - anchor) everywhere (a proximal term).
        anchor: center of the proximal term [d]; None is where the local steps begin.
        momentum: heavy-ball momentum outside `block`; None leaves it to the run's train.momentum.
        full_batch: take one step with the gradient of all samples at once, and no other.
    """

    shift: Vector | None = None
    block: Block = NO_BLOCK
    proximal_weight: float = 0.0
    anchor: Vector | None = None
    momentum: float | None = None
    full_batch: bool = False


def proximal_problems(setting: str, pull: float, lr: float) -> Iterable[str]:
    """Say so if steps of `lr` along pull * (anchor - w) end ever further from the anchor."""
    if lr * pull > 2:
        yield (
            f"{setting} * train.lr must be at most 2, not {pull:g} * {lr:g}: such steps lead ever "
            "further away from the model received"
        )


@dataclass(frozen=True)
class Method(Settings, Generic[S]):
    """Base of the methods; by itself it adds nothing to local training and sends nothing extra."""

    name: ClassVar[str]
    source: ClassVar[str]  # the paper
    needs: ClassVar[tuple[str, ...]] = ()  # metrics of every reply: LOSS, LOSS_BEFORE, STEPS
    granularity: ClassVar[Granularity] = Granularity.MODEL

    def init(self, layout: Layout) -> S:
        """Return the state before round 1."""
        raise NotImplementedError

    def server_payload(self, state: S, client: ClientId) -> Mapping[str, Vector]:
        """Return what the server sends this client beside the model, in the message's config."""
        return {}

    def local_rule(self, server_payload: Mapping[str, Vector], layout: Layout) -> LocalRule:
        """Return what the client adds to its local steps (runs on the client)."""
        return LocalRule()

    def client_payload(
        self,
        server_payload: Mapping[str, Vector],
        layout: Layout,
        received: Vector,
        reached: Vector,
        lr_sum: float,
    ) -> Mapping[str, Vector]:
        """Return what the client sends back beside the model (runs on the client).

        Args:
            server_payload: what came with the order.
            layout: the model's layout.
            received: weights that came with the order [d].
            reached: weights after the local steps [d]; good for this call alone.
            lr_sum: sum of the learning rates of the steps taken, K * lr.
        """
        return {}

    def expected_payload(self, state: S) -> Mapping[str, int]:
        """Return the vectors that a reply must bring, with their sizes."""
        return {}

    def aggregate(self, cohort: Cohort, state: S, layout: Layout) -> Step[S]:
        """Turn a round's accepted replies into a step and the next state. Pure."""
        raise NotImplementedError

    def personal_proximal_weight(self) -> float | None:
        """Return how strongly a model of the client's own is pulled to the one it receives.

        Such a model is trained beside the one for all, stays with the client, and is evaluated
        too. None: the method has no such thing.
        """
        return None

    def evaluation_offset(self, state: S) -> Vector | None:
        """Return how far [d] the model to evaluate and to keep is from the one to train on.

        The former is w + server_lr * offset; None means that they are the same.
        """
        return None

    @property
    def history_rounds(self) -> int | None:
        """Rounds for which the displacement of an absent client counts: those of age <= H.

        None: none is kept, or the method has no such number.
        """
        return None

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return of how many clients the state can hold a vector between rounds.

        Args:
            layout: the model's layout, with d floats.
            clients: N.
            cohort: clients of a round, m.
        """
        return 0

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the most floats that the vectors in the state can hold between rounds."""
        return 0

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the most floats of `aggregate` beside the vectors of state, replies and model.

        These are matrices of clients' products, which the state may keep, and copies of many
        clients' vectors. A float64 counts twice.
        """
        return 0

    def config_problems(self, *, lr: float, momentum: float, weight_decay: float) -> Iterable[str]:
        """Say why the run's local optimiser cannot be used with this method, if it cannot."""
        return ()

    @classmethod
    def neutral(cls) -> "Method[S] | None":
        """Return the setting at which the method is FedAvg, bit for bit, where there is one."""
        return None
