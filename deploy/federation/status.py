"""Print the state of a run: round, replies, and each client's state."""

import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from common.errors import ConfigError
from common.io.text import LONGEST_LINE, single_line
from common.runs.live_state import LIVE, LiveState, read_live_state
from common.runs.outcome import OUTCOME, Outcome, read_outcome
from common.runs.records import CONFIG_FILE, RECORDS, RoundRecord, read_records
from deploy.federation.participation import Participation
from server_app.run_dir.run_dir import LOG

FOLLOW_SECONDS = 1.0
SILENT_SECONDS = 10.0  # a live run writes its state every 2 s
OK, FAILED = 0, 1


def print_status(
    console: Console, out: Path, name: str, *, follow: bool, every_client: bool = False
) -> int:
    """Print the state of a run. Return 1 if it failed, otherwise 0.

    Args:
        console: Where to print.
        out: Folder of the runs.
        name: Name of the run. "" takes the newest.
        follow: Print each change until the run ends.
        every_client: List all clients. Otherwise, of many clients only those with problems.

    Raises:
        ConfigError: There is no such run.
        RecordError: The records cannot be read.
    """
    folder = find_run(out, name)
    last_line = ""
    while True:
        outcome, live = read_outcome(folder), read_live_state(folder)
        records = read_records(folder)
        if not follow or outcome:
            _print(console, folder, live, records, outcome, every_client)
            return FAILED if outcome and outcome.status == "failed" else OK
        line = headline(live, outcome, time.time(), folder.name)
        if line != last_line:
            console.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, soft_wrap=True)
            last_line = line
        time.sleep(FOLLOW_SECONDS)


def find_run(out: Path, name: str) -> Path:
    """Return the directory of the run of this name. "" takes the run that changed last.

    Raises:
        ConfigError: There is no such run.
    """
    run_files = (RECORDS, OUTCOME, LOG, LIVE, CONFIG_FILE)
    changed = {
        folder: max((folder / f).stat().st_mtime for f in run_files if (folder / f).exists())
        for folder in (out.iterdir() if out.is_dir() else ())
        if any((folder / file).exists() for file in run_files)
    }
    if name and (out / name) in changed:
        return out / name
    if name or not changed:
        known = ", ".join(sorted(folder.name for folder in changed)) or "none"
        wanted = f'no run "{name}"' if name else "no run"
        raise ConfigError(f"there is {wanted} in {out.absolute()}; there are: {known}")
    return max(changed, key=lambda folder: changed[folder])


def headline(
    live: LiveState | None, outcome: Outcome | None, now: float, name: str = "NAME"
) -> str:
    """Return the state of a run as one line."""
    return single_line(_headline(live, outcome, now, name), LONGEST_LINE)


def _headline(live: LiveState | None, outcome: Outcome | None, now: float, name: str) -> str:
    if outcome:
        return f"{outcome.status} after {outcome.rounds} rounds: {outcome.message}"
    if live is None:
        return "not started: its ServerApp has not written its state yet"
    where = f"round {live.round} of {live.rounds}: " if live.round else ""
    text = f"{where}{live.phase}"
    if live.asked:
        text += f", {len(live.answered)} of {len(live.asked)} replies"
    if live.awaited:
        text += f", waiting for {_names(live.awaited)}"
    elif not live.asked and live.deadline:
        text += f", {len(live.ready)} ready ({_names(live.ready) or 'no client'})"
    if live.deadline and live.deadline > now:
        text += f", {live.deadline - now:.0f} s left"
    if now - live.updated > SILENT_SECONDS:
        text += (
            f"; NO UPDATE for {now - live.updated:.0f} s; if its ServerApp was killed, "
            f"resume the run: fedkeel run --resume --name {name} ..."
        )
    return text


def _names(clients: Iterable[str], most: int = 10) -> str:
    names = list(clients)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _print(
    console: Console,
    folder: Path,
    live: LiveState | None,
    records: list[RoundRecord],
    outcome: Outcome | None,
    every_client: bool,
) -> None:
    line = headline(live, outcome, time.time(), folder.name)
    console.print(f"{folder.name}: {line}", markup=False, soft_wrap=True)
    participation = Participation.of(live, records, is_over=outcome is not None)
    listed = participation.clients if every_client else participation.listed_clients
    console.print(str(participation), markup=False, soft_wrap=True)
    if listed:
        console.print(participation.table(listed), markup=False)
    if left := len(participation.clients) - len(listed):
        more = f"{left:,} more, not listed: fedkeel status {folder.name} --all"
        console.print(more, markup=False, soft_wrap=True)
    voids = [record for record in records if record.void]
    if voids:
        console.print(f"{len(voids)} void rounds, the last: {voids[-1].void}", markup=False)
