"""The runs that a table, a plot or a report is about, as they lie on disk."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.config import RunConfig, flatten, parse
from common.errors import ConfigError
from common.fairness import Fairness
from common.runs.client_scores import Evaluation
from common.runs.json_file import RecordError
from common.runs.records import CONFIG_FILE, RECORDS, RoundRecord, read_records

ALWAYS_WRITTEN = frozenset(  # by every version
    ("method", "model", "clients", "seed", "rounds", "participation", "data.name")
)


@dataclass(frozen=True)
class RunData:
    """One run under the name that stands for it in tables and plots.

    Attributes:
        label: the name.
        records: a record for each of its rounds.
        config: its run config with dotted keys, defaults filled in; empty if it is not known.
        path: its folder, where it has one.
    """

    label: str
    records: tuple[RoundRecord, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def personal(self) -> "RunData | None":
        """The same run as seen by the clients' own models, where they have some."""
        own = {r.round: r.evaluation.personal for r in self.records if r.evaluation}
        if not any(own.values()):
            return None
        records = (replace(record, evaluation=own.get(record.round)) for record in self.records)
        return replace(self, label=f"{self.label}, own models", records=tuple(records))

    @property
    def seed(self) -> int | None:
        """The seed of its draws, if the config is known."""
        return self.config.get("seed")

    @property
    def rounds(self) -> int:
        """The rounds it has done."""
        return self.records[-1].round if self.records else 0

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
    def accuracies(self) -> dict[str, float]:
        """Each client's accuracy at the last evaluation; clients without a result are absent."""
        return self.last_evaluation[1].accuracies if self.last_evaluation else {}

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, mean accuracy) of the evaluated rounds."""
        return [(number, fairness.mean) for number, fairness in self.evaluated]


def load_runs(run_dirs: Mapping[str, Path]) -> list[RunData]:
    """Read the runs by label, in the order given; the clients' own models count as a run more.

    Raises:
        RecordError: a run's records are broken.
    """
    runs = [read_run(path, label) for label, path in run_dirs.items()]
    return [each for run in runs for each in (run, run.personal) if each]


def read_run(path: Path, label: str = "") -> RunData:
    """Read the run in a folder, whatever it has done so far.

    Raises:
        RecordError: its records are broken.
    """
    return RunData(label or path.name, tuple(read_records(path)), read_config(path), path)


def read_config(path: Path) -> dict[str, Any]:
    """Return the run config that lies in a run's folder, flat; empty if it is not known.

    What an older version did not write has its default. A file that is torn, or says what no run
    can have, says nothing: with defaults it would pass for another run.
    """
    defaults = RunConfig().to_flat()
    try:
        written = flatten(tomllib.loads((path / CONFIG_FILE).read_text(encoding="utf-8")))
        parse({key: value for key, value in written.items() if key in defaults})
    except (OSError, ValueError, ConfigError):
        return {}
    if not written.keys() >= ALWAYS_WRITTEN:
        return {}
    return {**defaults, "name": path.name, **written}


def discover(places: Sequence[Path]) -> tuple[list[RunData], dict[str, str]]:
    """Read every run in these folders and below them, once each, in the order of their paths.

    Returns:
        The runs, and the folders of those whose records are broken, with the reason.

    Raises:
        ConfigError: there is no such folder, or no run in it.
    """
    runs, broken = [], {}
    for path in _found(places):
        try:
            runs.append(read_run(path))
        except RecordError as error:
            broken[str(path)] = str(error)
    return runs, broken


def _found(places: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for place in places:
        inside = folders_with(place, [RECORDS])
        if not inside:
            what = "there is no run in" if place.is_dir() else "there is no folder"
            raise ConfigError(
                f"{what} {place}; expected the folder of a run (it holds {RECORDS}), or one that "
                "holds such folders"
            )
        found |= dict.fromkeys(folder.resolve() for folder in inside)
    return list(found)


def folders_with(place: Path, marks: Sequence[str]) -> list[Path]:
    """Return the folders at and below a place that hold one of these files, in order."""
    inside = {mark.parent for name in marks for mark in place.rglob(name)}
    return sorted(
        folder
        for folder in inside  # the name of a run has no dot at its head; what is put aside has
        if not any(part.startswith(".") for part in folder.relative_to(place).parts)
    )


def name_below(places: Sequence[Path], folder: Path) -> str:
    """Return a run's name by its place: its path below the folder that was asked for."""
    here = folder.resolve()
    for place in (place.resolve() for place in places):
        if here.is_relative_to(place):
            return here.relative_to(place).as_posix() if here != place else here.name
    return here.name
