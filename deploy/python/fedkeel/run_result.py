"""The result of a run: one row per round, one row per client and round, and the final model."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.config import RunConfig
from common.fairness import Fairness
from common.runs.outcome import Outcome
from common.runs.records import RoundRecord
from server_app.run_dir.run_dir import WEIGHTS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RoundRow:
    """One row of a run's table of rounds. A value that was not measured is None.

    Attributes:
        round: number of the round, from 1.
        lr: local learning rate.
        clients: number of clients whose updates were used.
        dropped: number of clients whose updates were not used, or did not arrive.
        void: True if the round did not change the model.
        train_loss: mean training loss.
        seconds: duration of the round.
        megabytes_down: training traffic from the server to the clients, in 10^6 bytes.
        megabytes_up: training traffic from the clients to the server, in 10^6 bytes.
        mean: mean accuracy over the clients, in [0, 1].
        worst10: mean accuracy of the worst tenth of the clients.
        spread: standard deviation of the clients' accuracies.
        jain: Jain index of the clients' accuracies.
    """

    round: int
    lr: float
    clients: int
    dropped: int
    void: bool
    train_loss: float | None
    seconds: float
    megabytes_down: float
    megabytes_up: float
    mean: float | None
    worst10: float | None
    spread: float | None
    jain: float | None


@dataclass(frozen=True)
class ClientRow:
    """One row of a run's table of clients: one client in one evaluated round.

    Attributes:
        round: number of the round, from 1.
        client: id of the client.
        examples: number of test samples.
        correct: number of correctly classified test samples.
        accuracy: correct / examples.
        loss: mean loss per test sample in nats; None if the client does not report it.
    """

    round: int
    client: str
    examples: int
    correct: int
    accuracy: float
    loss: float | None


@dataclass(frozen=True)
class RunResult:
    """A completed run.

    Attributes:
        config: the run config, with every default filled in.
        run_dir: the run directory.
        outcome: how the run ended.
        rounds: one row per round.
        clients: one row per client and evaluated round.
        fairness: accuracy and fairness of the final model; None if no client has test samples.
    """

    config: RunConfig
    run_dir: Path
    outcome: Outcome
    rounds: tuple[RoundRow, ...]
    clients: tuple[ClientRow, ...]
    fairness: Fairness | None

    def to_dict(self) -> dict[str, dict[str, list[Any]]]:
        """Return the tables "rounds" and "clients" as columns.

        Each table can be passed to `pandas.DataFrame` or `polars.DataFrame`.
        """
        return {
            "rounds": _columns(RoundRow, self.rounds),
            "clients": _columns(ClientRow, self.clients),
        }

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the parameters and buffers of the final model by name."""
        with np.load(self.run_dir / WEIGHTS, allow_pickle=False) as arrays:
            return dict(arrays)

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """Return the final model for `torch.nn.Module.load_state_dict`."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.weights().items()}


def round_row(record: RoundRecord) -> RoundRow:
    """Return the row of a round."""
    scores = record.evaluation.fairness if record.evaluation else None
    return RoundRow(
        round=record.round,
        lr=record.lr,
        clients=len(record.replied),
        dropped=len(record.dropped),
        void=record.void is not None,
        train_loss=record.train_loss,
        seconds=sum(record.seconds.values()),
        megabytes_down=sum(record.bytes_down.values()) / 1e6,
        megabytes_up=sum(record.bytes_up.values()) / 1e6,
        mean=scores.mean if scores else None,
        worst10=scores.worst10 if scores else None,
        spread=scores.spread if scores else None,
        jain=scores.jain if scores else None,
    )


def client_rows(record: RoundRecord) -> list[ClientRow]:
    """Return the rows of the clients that were evaluated in a round."""
    scores = record.evaluation.clients if record.evaluation else {}
    return [
        ClientRow(
            round=record.round,
            client=client,
            examples=score.examples,
            correct=score.correct,
            accuracy=score.accuracy,
            loss=None if score.loss_sum is None else score.loss_sum / score.examples,
        )
        for client, score in scores.items()
    ]


def _columns(row_type: type[Any], rows: Sequence[Any]) -> dict[str, list[Any]]:
    table = [asdict(row) for row in rows]
    return {item.name: [row[item.name] for row in table] for item in fields(row_type)}
