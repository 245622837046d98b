"""Options of the rounds, and the interfaces of diagnostics and observers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from common.config_groups import ServerConfig
from common.runs.live_state import LiveState
from common.runs.records import RoundRecord
from common.settings import Settings, same_setting, setting
from common.types import Cohort, Step
from common.wire.content import ARRAYS, CONFIG
from common.wire.reply_metrics import EXAMPLES
from server_app.state.server_state import ServerState


@dataclass(frozen=True)
class Options(Settings):
    """How the rounds of a method run. The first eight settings are those of Flower's FedAvg.

    `ServerConfig` declares the default, range and help of the nine settings that it shares.
    """

    fraction_train: float = setting(1.0, "share of the clients that train", low=0, high=1)
    fraction_evaluate: float = setting(1.0, "share of the clients that evaluate", low=0, high=1)
    min_train_nodes: int = setting(1, "fewest clients that train", low=0)
    min_evaluate_nodes: int = setting(1, "fewest clients that evaluate", low=0)
    min_available_nodes: int = setting(1, "clients to wait for before a round", low=1)
    weighted_by_key: str = setting(EXAMPLES, "metric that weighs a reply")
    arrayrecord_key: str = setting(ARRAYS, "name of the model's record")
    configrecord_key: str = setting(CONFIG, "name of the config's record")
    clients: int = setting(0, "clients of the federation, N; 0: all connected clients", low=0)
    over_selection: int = same_setting(ServerConfig, "over_selection")
    server_lr: float = same_setting(ServerConfig, "lr")
    seed: int = setting(0, "seed of the sampling of clients", low=0)
    eval_every: int = setting(1, "rounds between evaluations; 0: the last round only", low=0)
    min_replies: int = same_setting(ServerConfig, "min_replies")
    max_void_rounds: int = same_setting(ServerConfig, "max_void_rounds")
    max_update_ratio: float = same_setting(ServerConfig, "max_update_ratio")
    max_update_norm: float = same_setting(ServerConfig, "max_update_norm")
    retries: int = same_setting(ServerConfig, "retries")
    patience: float = same_setting(ServerConfig, "patience")
    start_timeout: float = same_setting(ServerConfig, "start_timeout")


class Diagnose(Protocol):
    """Returns the diagnostics of a round, which go into its record."""

    def __call__(
        self, before: ServerState[Any], cohort: Cohort, step: Step[Any]
    ) -> Mapping[str, Any]:
        """Return plain values by name, or an empty mapping for a round without diagnostics.

        Args:
            before: the state whose weights the clients received.
            cohort: their accepted replies.
            step: the step of the method for them.

        Raises:
            FedError: the diagnostics failed. The round still counts.
        """


class Observer(Protocol):
    """Gets the state, the record and the live state of each round."""

    def save_state(self, state: ServerState[Any]) -> None:
        """Save the state after a round that changed it."""

    def save_record(self, record: RoundRecord) -> None:
        """Save the record of a finished round."""

    def show_live(self, live: LiveState) -> None:
        """Show the live state. Called several times a second while the server waits for replies."""
