"""The runs that a table, a plot or a report is about, as they lie on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from common.metrics import Fairness
from server_app.records import Evaluation, RoundRecord, read_records


@dataclass(frozen=True)
class Run:
    """One run under the name that stands for it in tables and plots."""

    label: str
    records: tuple[RoundRecord, ...]

    @property
    def personal(self) -> "Run | None":
        """The same run as seen by the clients' own models, where they have some."""
        own = {r.round: r.evaluation.personal for r in self.records if r.evaluation}
        if not any(own.values()):
            return None
        records = (replace(record, evaluation=own.get(record.round)) for record in self.records)
        return Run(f"{self.label}, own models", tuple(records))

    @property
    def evaluated(self) -> list[tuple[int, Fairness]]:
        """(round, fairness) of every round whose evaluation reached somebody."""
        pairs = [(r.round, r.evaluation.fairness) for r in self.records if r.evaluation]
        return [(number, fairness) for number, fairness in pairs if fairness]

    @property
    def last_evaluation(self) -> tuple[int, Evaluation] | None:
        """The round and evaluation that the report is about, None if nothing was evaluated."""
        found = [(r.round, r.evaluation) for r in self.records if r.evaluation]
        return next(((n, e) for n, e in reversed(found) if e.fairness), None)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, mean accuracy) of the evaluated rounds."""
        return [(number, fairness.mean) for number, fairness in self.evaluated]


def load_runs(run_dirs: Mapping[str, Path]) -> list[Run]:
    """Read the runs by label, in the order given; the clients' own models count as a run more.

    Raises:
        RecordError: a run's records are broken.
    """
    runs = [Run(label, tuple(read_records(path))) for label, path in run_dirs.items()]
    return [each for run in runs for each in (run, run.personal) if each]
