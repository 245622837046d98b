"""What a run is doing, from its folder: who is asked, who has answered, who is late and why."""

import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from common.errors import ConfigError
from common.io.text import single_line
from common.runs.live_state import LIVE, LiveState, read_live_state
from common.runs.outcome import OUTCOME, Outcome, read_outcome
from common.runs.records import CONFIG_FILE, RECORDS, RoundRecord, read_records
from deploy.federation.participation import Participation
from server_app.run_dir.run_dir import LOG

LONGEST_LINE = 1000
FOLLOW_SECONDS = 1.0
SILENT_SECONDS = 10.0  # a run that lives gives a sign every two
OK, FAILED = 0, 1


def print_status(
    console: Console, out: Path, name: str, *, follow: bool, every_client: bool = False
) -> int:
    """Print where a run stands; with `follow` until it ends. Returns 1 for one that failed.

    Of many clients only those that need a look are listed, unless `every_client`.

    Raises:
        ConfigError: there is no such run.
        RecordError: its records cannot be read.
    """
    folder = find_run(out, name)
    told = ""
    while True:
        outcome, live = read_outcome(folder), read_live_state(folder)
        records = read_records(folder)
        if not follow or outcome:
            _print(console, folder, live, records, outcome, every_client)
            return FAILED if outcome and outcome.status == "failed" else OK
        line = headline(live, outcome, time.time(), folder.name)
        if line != told:
            console.print(f"{time.strftime('%H:%M:%S')} {line}", markup=False, soft_wrap=True)
            told = line
        time.sleep(FOLLOW_SECONDS)


def find_run(out: Path, name: str) -> Path:
    """Return the folder of the run of this name, or of the one that was touched last.

    Raises:
        ConfigError: there is none.
    """
    marks = (RECORDS, OUTCOME, LOG, LIVE, CONFIG_FILE)
    found = {
        folder: max((folder / m).stat().st_mtime for m in marks if (folder / m).exists())
        for folder in (out.iterdir() if out.is_dir() else ())
        if any((folder / mark).exists() for mark in marks)
    }
    if name and (out / name) in found:
        return out / name
    if name or not found:
        known = ", ".join(sorted(folder.name for folder in found)) or "none"
        wanted = f'no run "{name}"' if name else "no run"
        raise ConfigError(f"there is {wanted} in {out.absolute()}; there are: {known}")
    return max(found, key=lambda folder: found[folder])


def headline(
    live: LiveState | None, outcome: Outcome | None, now: float, name: str = "NAME"
) -> str:
    """Say in one line what a run is doing."""
    return single_line(_headline(live, outcome, now, name), LONGEST_LINE)


def _headline(live: LiveState | None, outcome: Outcome | None, now: float, name: str) -> str:
    if outcome:
        return f"{outcome.status} after {outcome.rounds} rounds: {outcome.message}"
    if live is None:
        return "not begun: its ServerApp has not given a sign yet"
    where = f"round {live.round} of {live.rounds}: " if live.round else ""
    text = f"{where}{live.phase}"
    if live.asked:
        text += f", {len(live.answered)} of {len(live.asked)} replies"
    if live.awaited:
        text += f", waiting for {_names(live.awaited)}"
    elif not live.asked and live.deadline:
        text += f", {len(live.ready)} ready ({_names(live.ready) or 'nobody'})"
    if live.deadline and live.deadline > now:
        text += f", {live.deadline - now:.0f} s left"
    if now - live.updated > SILENT_SECONDS:
        text += (
            f"; NO SIGN OF LIFE for {now - live.updated:.0f} s: was its ServerApp killed? "
            f"If so, go on with: fedkeel run --resume --name {name} ..."
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
    turnout = Participation.of(live, records, is_over=outcome is not None)
    shown = turnout.clients if every_client else turnout.worth_a_look
    console.print(str(turnout), markup=False, soft_wrap=True)
    if shown:
        console.print(turnout.table(shown), markup=False)
    if left := len(turnout.clients) - len(shown):
        more = f"{left:,} more, not listed: fedkeel status {folder.name} --all"
        console.print(more, markup=False, soft_wrap=True)
    voids = [record for record in records if record.void]
    if voids:
        console.print(f"{len(voids)} void rounds, the last: {voids[-1].void}", markup=False)
