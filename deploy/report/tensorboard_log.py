"""Write the metrics of runs as TensorBoard event files."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from common.errors import ConfigError
from common.runs.records import RoundRecord
from deploy.report.diagnostic_values import number_in
from deploy.report.run_data import RunData


class TensorBoardLog:
    """Event files that are updated while runs go on, in one directory below `place` per run.

    If a directory already has event files, a new file starts at round 1. TensorBoard shows it
    instead of the older ones.
    """

    def __init__(self, place: Path) -> None:
        """Create the directory.

        Raises:
            ConfigError: `tensorboard` is not installed, or the directory cannot be created.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "TensorBoard files need one more package: pip install tensorboard"
            ) from error
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"TensorBoard files cannot be written to {place}: {error}") from error
        self.place, self._open = place, SummaryWriter
        self._files: dict[str, tuple[SummaryWriter, int]] = {}

    def write(self, runs: Sequence[RunData], names: Sequence[str]) -> None:
        """Add the new rounds since the last call.

        Args:
            runs: the runs.
            names: a folder's name for each of them.
        """
        for run, name in zip(runs, names, strict=True):
            if name not in self._files:
                self._files[name] = (self._open(str(self.place / name), purge_step=0), 0)
            file, done = self._files[name]
            if run.rounds < done:  # the run was restarted or resumed from a checkpoint
                file.close()
                file, done = self._open(str(self.place / name), purge_step=0), 0
            for record in run.records:
                if record.round > done:
                    for tag, value in scalars(record):
                        file.add_scalar(tag, value, record.round)
            file.flush()
            self._files[name] = (file, run.rounds)

    def close(self) -> None:
        """Close the files."""
        for file, _ in self._files.values():
            file.close()


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Yield (tag, number) of a round. Undefined numbers are left out."""
    yield "train/lr", record.lr
    if record.train_loss is not None:
        yield "train/loss", record.train_loss
    yield "clients/asked", len(record.cohort)
    yield "clients/dropped", len(record.dropped)
    evaluation = record.evaluation
    if evaluation and evaluation.fairness:
        for name, value in asdict(evaluation.fairness).items():
            yield f"evaluation/{name}", value
        if evaluation.loss is not None:
            yield "evaluation/loss", evaluation.loss
    drift = number_in(record.diagnostics, "drift", "whole")
    if drift is not None:
        yield "diagnostics/drift", drift
    for group, numbers in (("method", record.method), ("seconds", record.seconds)):
        for name, value in numbers.items():
            number = number_in(value)
            if number is not None:
                yield f"{group}/{name}", number
