"""What of a sweep's runs is there already, and what must be done about each."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from common.config import parse
from common.errors import ConfigError
from deploy.order import only_one
from deploy.report.runs import read_config
from deploy.sweep.runs import PlannedRun, identity, substance
from server_app.checkpoint import newest_head
from server_app.folder import CHECKPOINTS
from server_app.records import CONFIG_FILE, RECORDS, read_outcome

To: TypeAlias = Literal["start", "resume", "start over", "nothing"]
MOST_TOLD = 5


@dataclass(frozen=True)
class Standing:
    """A run in its place, and what is to be done about it."""

    run: PlannedRun
    to: To
    done: int = 0  # rounds that need not be done again

    @property
    def folder(self) -> Path:
        """Where the run is, or will be."""
        return Path(self.run.config.out) / self.run.name


def standings(folder: Path, runs: Sequence[PlannedRun]) -> list[Standing]:
    """Look at what lies in a sweep's folder; nothing is changed.

    A run that is there under another name (an earlier, smaller plan named it) keeps that name.

    Raises:
        ConfigError: a folder that a run needs holds another run; says what differs.
    """
    held = _held(folder)
    named = [replace(run, name=held.get(run.identity, run.name)).below(folder) for run in runs]
    problems, found = [], []
    for run in named:
        try:
            found.append(_standing(folder / run.name, run))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        more = [f"and {len(problems) - MOST_TOLD} more"] if len(problems) > MOST_TOLD else []
        raise ConfigError(
            "\n  ".join(
                [
                    f"{folder} holds other runs; give this sweep another --name, or remove them:",
                    *problems[:MOST_TOLD],
                    *more,
                ]
            )
        )
    return found


def clear(standing: Standing) -> None:
    """Remove what a run without a checkpoint left, so that it can start over.

    Raises:
        ConfigError: another process is at work there.
    """
    with only_one(standing.folder):
        shutil.rmtree(standing.folder)


def let_go(standing: Standing) -> None:
    """Remove the checkpoints of a complete run: with what a method remembers they are large.

    A sweep never goes on from them, since a run with more rounds is another run.
    """
    shutil.rmtree(standing.folder / CHECKPOINTS, ignore_errors=True)


def _held(folder: Path) -> dict[str, str]:
    """Return the folder's runs: their names by what they are."""
    held: dict[str, str] = {}
    for path in sorted(folder.glob(f"*/{CONFIG_FILE}")):
        try:
            held.setdefault(identity(parse(read_config(path.parent))), path.parent.name)
        except ConfigError:  # of another version
            continue
    return held


def _standing(path: Path, run: PlannedRun) -> Standing:
    if not (path / CONFIG_FILE).exists():
        if (path / RECORDS).exists():
            raise ConfigError(f"{path.name} is a run without its {CONFIG_FILE}")
        return Standing(run, "start")
    try:
        written = substance(parse(read_config(path)))
    except ConfigError as error:
        raise ConfigError(f"the {CONFIG_FILE} of {path.name} cannot be used: {error}") from error
    if changes := _changes(written, substance(run.config)):
        raise ConfigError(f"{path.name}: {changes}")
    outcome = read_outcome(path)
    if outcome is not None and outcome.status == "completed":
        return Standing(run, "nothing", run.config.rounds)
    head, _ = newest_head(path / CHECKPOINTS)
    if head is not None:
        return Standing(run, "resume", head.round)
    return Standing(run, "start over" if (path / RECORDS).exists() else "start")


def _changes(written: dict[str, Any], wanted: dict[str, Any]) -> str:
    keys = dict.fromkeys([*written, *wanted])
    return "; ".join(
        f"{key} was {written.get(key)!r}, is {wanted.get(key)!r}"
        for key in keys
        if written.get(key) != wanted.get(key)
    )
