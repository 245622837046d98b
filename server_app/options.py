"""How rounds are run around a method, and who watches them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from common.runs.live_state import LiveState
from common.runs.records import RoundRecord
from common.settings import Settings, setting
from common.types import Cohort, Step
from common.wire import ARRAYS, CONFIG, EXAMPLES
from server_app.state import ServerState


@dataclass(frozen=True)
class Options(Settings):
    """How rounds are run around a method; the first eight are Flower's own, with its meaning."""

    fraction_train: float = setting(1.0, "share of the clients that train", low=0, high=1)
    fraction_evaluate: float = setting(1.0, "share of the clients that evaluate", low=0, high=1)
    min_train_nodes: int = setting(1, "fewest clients asked to train", low=0)
    min_evaluate_nodes: int = setting(1, "fewest clients asked to evaluate", low=0)
    min_available_nodes: int = setting(1, "clients to wait for before a round", low=1)
    weighted_by_key: str = setting(EXAMPLES, "metric that weighs a reply")
    arrayrecord_key: str = setting(ARRAYS, "name of the model's record")
    configrecord_key: str = setting(CONFIG, "name of the config's record")
    clients: int = setting(0, "clients of the federation, N; 0: those that are there", low=0)
    over_selection: int = setting(
        0, "clients asked beyond the cohort; the round uses the first replies", low=0
    )
    server_lr: float = setting(1.0, "w <- w - server_lr * direction", low=0, open_low=True)
    seed: int = setting(0, "address of the cohorts", low=0)
    eval_every: int = setting(1, "rounds between evaluations; 0: the last round only", low=0)
    min_replies: int = setting(1, "fewer usable replies make a round void", low=1)
    max_void_rounds: int = setting(3, "void rounds in a row after which the run stops", low=1)
    retries: int = setting(2, "times a round asks a client again that was lost", low=0)
    patience: float = setting(60.0, "seconds that a client has to come back to its round", low=0)
    start_timeout: float = setting(120.0, "seconds to wait for clients before a round", low=0)


class Diagnose(Protocol):
    """Who looks at what a round's step was made of; whatever it says goes into the record."""

    def __call__(
        self, before: ServerState[Any], cohort: Cohort, step: Step[Any]
    ) -> Mapping[str, Any]:
        """Return plain values by name, none for a round that is not looked at.

        Args:
            before: the state whose weights the clients received.
            cohort: their accepted replies.
            step: what the method made of them.

        Raises:
            FedError: why nothing can be said; the round counts all the same.
        """


class Observer(Protocol):
    """Who wants to see rounds as they happen: records, checkpoints."""

    def save_state(self, state: ServerState[Any]) -> None:
        """A round changed the state."""

    def save_record(self, record: RoundRecord) -> None:
        """A round is over, evaluated or not."""

    def show_live(self, live: LiveState) -> None:
        """What is going on now; called a few times a second while replies are awaited."""
