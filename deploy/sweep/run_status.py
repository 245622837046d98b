"""The state of each run of a sweep, and the action that it needs."""

import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from common.config import parse
from common.errors import ConfigError
from common.run_identity import IGNORED_BY_SWEEP, identifying_settings, sweep_identity
from common.runs.json_file import RecordError
from common.runs.outcome import read_outcome
from common.runs.records import CONFIG_FILE, RECORDS
from deploy.report.run_data import read_config
from deploy.sweep.runs import PlannedRun
from deploy.system.signals import run_dir_lock
from server_app.run_dir.checkpoint import newest_head
from server_app.run_dir.run_dir import CHECKPOINTS

Action: TypeAlias = Literal["start", "resume", "start over", "nothing"]
MOST_TOLD = 5
ASIDE = ".removed-"  # no run has such a name


@dataclass(frozen=True)
class RunStatus:
    """A run in its place, and what is to be done about it."""

    run: PlannedRun
    action: Action
    done: int = 0  # rounds that need not be done again

    @property
    def folder(self) -> Path:
        """Where the run is, or will be."""
        return Path(self.run.config.out) / self.run.name


def run_statuses(folder: Path, runs: Sequence[PlannedRun]) -> list[RunStatus]:
    """Read a sweep's folder. It changes nothing.

    A run that exists under another name, from an earlier and smaller plan, keeps that name if it
    has any round. If another run of the plan has the name, the run's digest is added to it.

    Raises:
        ConfigError: a folder that a run needs holds another run. The message names the difference.
    """
    held: dict[str, list[str]] = {run.identity: [] for run in runs}
    for name, its in _held(folder):
        if its in held:
            held[its].append(name)
    taken = {name for names in held.values() for name in names}
    problems, found = [], []
    for run, same in zip(runs, held.values(), strict=True):
        try:
            found.append(_placed(folder, run, same, taken.difference(same)))
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


def remove_unfinished_run(run_status: RunStatus) -> None:
    """Remove what a run without a checkpoint left, so that it can start over.

    It is put aside first: of a removal that is cut nothing is left that looks like a run.

    Raises:
        ConfigError: another process is at work there.
        OSError: the disk refuses it.
    """
    folder = run_status.folder
    aside = folder.with_name(f"{ASIDE}{secrets.token_hex(8)}")
    with run_dir_lock(folder):
        folder.rename(aside)
        shutil.rmtree(aside)


def remove_leftovers(folder: Path) -> None:
    """Remove what cut removals left in a sweep's folder."""
    for aside in folder.glob(f"{ASIDE}*"):
        shutil.rmtree(aside, ignore_errors=True)


def remove_checkpoints(run_status: RunStatus) -> None:
    """Remove the checkpoints of a complete run: with what a method remembers they are large.

    A sweep never goes on from them, since a run with more rounds is another run.
    """
    shutil.rmtree(run_status.folder / CHECKPOINTS, ignore_errors=True)


def _held(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the names of the folder's runs, in order, and what they are."""
    for path in sorted(file.parent for file in folder.glob(f"*/{CONFIG_FILE}")):
        known = {} if path.name.startswith(".") else read_config(path)
        with suppress(ConfigError):  # of another version
            if known:
                yield path.name, sweep_identity(parse(known))


def _placed(
    folder: Path, run: PlannedRun, same: Sequence[str], others: Collection[str]
) -> RunStatus:
    """Return where the run is or will be, and what is to be done about it.

    Args:
        folder: the sweep's.
        run: the run.
        same: names of the folders that hold this run.
        others: of those that hold another run of the plan.
    """
    if not any(name in same for name in run.names):
        copies = [_run_status(run.below(folder, name)) for name in same]
        complete = [copy for copy in copies if copy.action == "nothing"]
        begun = sorted(
            (copy for copy in copies if copy.action == "resume"), key=lambda one: -one.done
        )
        if best := [*complete, *begun]:  # other folders are never removed
            return best[0]
    free = [name for name in run.names if name in same or name not in others]
    name = next((name for name in run.names if name in same), (free or run.names)[0])
    return _run_status(run.below(folder, name))


def _run_status(run: PlannedRun) -> RunStatus:
    path = Path(run.config.out) / run.name
    head, torn = newest_head(path / CHECKPOINTS)
    has_records = (path / RECORDS).exists()
    known = read_config(path)
    if not known:
        if head or torn or has_records:
            what = "torn" if (path / CONFIG_FILE).exists() else "missing"
            raise ConfigError(
                f"{CONFIG_FILE} of {path.name} is {what}: what was done there is not known; put it "
                "back, or remove that folder to have the run done again"
            )
        return RunStatus(run, "start")
    try:
        written = identifying_settings(parse(known).to_flat(), IGNORED_BY_SWEEP)
    except ConfigError as error:
        raise ConfigError(f"the {CONFIG_FILE} of {path.name} cannot be used: {error}") from error
    wanted = identifying_settings(run.config.to_flat(), IGNORED_BY_SWEEP)
    if changes := _changes(written, wanted):
        raise ConfigError(f"{path.name}: {changes}")
    if _is_complete(path):
        return RunStatus(run, "nothing", run.config.rounds)
    if head is not None:
        return RunStatus(run, "resume", head.round)
    return RunStatus(run, "start over" if has_records else "start")


def _is_complete(path: Path) -> bool:
    try:
        outcome = read_outcome(path)
    except RecordError:  # torn: its end was not reached
        return False
    return outcome is not None and outcome.status == "completed"


def _changes(written: dict[str, Any], wanted: dict[str, Any]) -> str:
    keys = dict.fromkeys([*written, *wanted])
    return "; ".join(
        f"{key} was {written.get(key)!r}, is {wanted.get(key)!r}"
        for key in keys
        if written.get(key) != wanted.get(key)
    )
