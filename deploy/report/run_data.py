"""Read runs from their run directories."""

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

ALWAYS_WRITTEN = frozenset(  # every version writes these keys
    ("method", "model", "clients", "seed", "rounds", "participation", "data.name")
)
QUICK = "quick"  # the directory of a quick sweep ends in -quick


@dataclass(frozen=True)
class RunData:
    """The records and the config of one run.

    Attributes:
        label: its name in tables and figures.
        records: one per round.
        config: the run config with dotted keys and defaults, {} if it is unknown.
        path: the run directory, if there is one.
    """

    label: str
    records: tuple[RoundRecord, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def personal(self) -> "RunData | None":
        """The same run with the evaluations of the clients' own models, None without any."""
        own = {r.round: r.evaluation.personal for r in self.records if r.evaluation}
        if not any(own.values()):
            return None
        records = (replace(record, evaluation=own.get(record.round)) for record in self.records)
        return replace(self, label=f"{self.label}, own models", records=tuple(records))

    @property
    def seed(self) -> int | None:
        """The seed, None if the config is unknown."""
        return self.config.get("seed")

    @property
    def rounds(self) -> int:
        """The number of the last round."""
        return self.records[-1].round if self.records else 0

    @property
    def evaluated(self) -> list[tuple[int, Fairness]]:
        """(round, fairness) of every round in which at least one client was evaluated."""
        pairs = [(r.round, r.evaluation.fairness) for r in self.records if r.evaluation]
        return [(number, fairness) for number, fairness in pairs if fairness]

    @property
    def last_evaluation(self) -> tuple[int, Evaluation] | None:
        """The last round with a result and its evaluation, None if nothing was evaluated."""
        found = [(r.round, r.evaluation) for r in self.records if r.evaluation]
        return next(((n, e) for n, e in reversed(found) if e.fairness), None)

    @property
    def accuracies(self) -> dict[str, float]:
        """The accuracy of each client with a result in the last evaluation."""
        return self.last_evaluation[1].accuracies if self.last_evaluation else {}

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, mean accuracy) of the evaluated rounds."""
        return [(number, fairness.mean) for number, fairness in self.evaluated]


def load_runs(run_dirs: Mapping[str, Path]) -> list[RunData]:
    """Read the runs by label, in the given order. The clients' own models count as another run.

    Raises:
        RecordError: the records of a run are broken.
    """
    runs = [read_run(path, label) for label, path in run_dirs.items()]
    return [each for run in runs for each in (run, run.personal) if each]


def read_run(path: Path, label: str = "") -> RunData:
    """Read the run of a run directory, finished or not.

    Raises:
        RecordError: its records are broken.
    """
    return RunData(label or path.name, tuple(read_records(path)), read_config(path), path)


def read_config(path: Path) -> dict[str, Any]:
    """Return the run config of a run directory with dotted keys, {} if it is unknown.

    Keys that an older version did not write get their default. A damaged or invalid file gives
    {}, because defaults would make it look like another run.
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
    """Read every run in and below these directories once, in the order of the paths.

    Returns:
        The runs, and the error message of each run directory whose records are broken.

    Raises:
        ConfigError: a directory does not exist or contains no run.
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
            problem = "there is no run in" if place.is_dir() else "there is no folder"
            raise ConfigError(
                f"{problem} {place}; expected the folder of a run (it holds {RECORDS}), or "
                "one that holds such folders"
            )
        found |= dict.fromkeys(folder.resolve() for folder in inside)
    return list(found)


def folders_with(place: Path, marks: Sequence[str]) -> list[Path]:
    """Return the directories in and below `place` that contain one of these files, sorted."""
    inside = {mark.parent for name in marks for mark in place.rglob(name)}
    return sorted(
        folder
        for folder in inside  # a leading dot marks a run that was moved aside
        if not any(part.startswith(".") for part in folder.relative_to(place).parts)
    )


def name_below(places: Sequence[Path], folder: Path) -> str:
    """Return the name of a run: its path relative to the given directory."""
    here = folder.resolve()
    for place in (place.resolve() for place in places):
        if here.is_relative_to(place):
            return here.relative_to(place).as_posix() if here != place else here.name
    return here.name
