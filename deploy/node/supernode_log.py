"""What the lines of a SuperNode and its app processes mean, as one line an event. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from common.io.text import single_line

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEVEL = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) ?: *")
GRAVE = re.compile(r"(?:WARNING|ERROR|CRITICAL) ?: *(.+)")
PASSING = re.compile(  # what Flower warns of though it concerns nobody
    r"EXPERIMENTAL: SuperExec auth|Connection attempt failed, retrying"
)
FULL = re.compile(r"[\w.]+: .*No space left on device")  # how an exception ends its traceback
FULL_SAID = "the disk is full: make room (df -h)"


@dataclass(frozen=True)
class NodeLogState:
    """What the lines of one node's life add up to.

    Attributes:
        connected: whether the server let the node in.
        retrying: whether the node is trying to reach the server again.
        run: the run of the last message.
        round: the round of the last message, "" for a question outside of the rounds.
        since: when the last order came (seconds).
        code: Flower's exit code or error code, "" while there is none.
        gave_up: whether the node will not reach for the server again, though it still runs.
    """

    connected: bool = False
    retrying: bool = False
    run: str = ""
    round: str = ""
    since: float = 0.0
    code: str = ""
    gave_up: bool = False


StateAndEvent: TypeAlias = tuple[NodeLogState, str]


def read_log_line(heard: NodeLogState, line: str, now: float) -> StateAndEvent:
    """Return what is known after a line of the SuperNode, and the event to tell, "" for none.

    Args:
        heard: what is known before.
        line: as the process wrote it, colours included.
        now: when it came, in seconds of any clock.
    """
    text = LEVEL.sub("", without_colours(line))
    for pattern, means in RULES.items():
        if match := pattern.match(text):
            heard, event = means(heard, match.groups(), now)
            return heard, single_line(event)
    return heard, warning_text(line)


def warning_text(line: str) -> str:
    """Return the text of a warning or an error of any of the processes, "" for other lines."""
    if is_disk_full(line):
        return FULL_SAID
    found = GRAVE.match(without_colours(line))
    return single_line(found[1]) if found and not PASSING.match(found[1]) else ""


def is_disk_full(line: str) -> bool:
    """Return whether a line ends the traceback of a write to a full disk."""
    return FULL.match(without_colours(line)) is not None


def without_colours(line: str) -> str:
    """Return a line without its colours."""
    return COLOURS.sub("", line).rstrip()


def _connected(heard: NodeLogState, _: tuple[str, ...], __: float) -> StateAndEvent:
    return replace(heard, connected=True), "connected: ready for orders"


def _retrying(heard: NodeLogState, _: tuple[str, ...], __: float) -> StateAndEvent:
    event = "" if heard.retrying else "the server cannot be reached; trying again until it can"
    return replace(heard, retrying=True), event


def _reached(heard: NodeLogState, found: tuple[str, ...], _: float) -> StateAndEvent:
    event = f"the server can be reached again after {float(found[0]):.0f} s"
    return replace(heard, retrying=False), event if heard.retrying else ""


def _message(heard: NodeLogState, found: tuple[str, ...], _: float) -> StateAndEvent:
    run, number = found
    event = "" if run == heard.run else f"takes part in run {run}"
    return replace(heard, run=run, round=number or ""), event


def _order(heard: NodeLogState, found: tuple[str, ...], now: float) -> StateAndEvent:
    kind = "question" if found[0] == "query" else f"{found[0]} order"
    return replace(heard, since=now, retrying=False), f"{_round(heard)}{kind} received"


def _reply(heard: NodeLogState, _: tuple[str, ...], now: float) -> StateAndEvent:
    return heard, f"{_round(heard)}reply sent, {now - heard.since:.1f} s after the order"


def _too_late(heard: NodeLogState, _: tuple[str, ...], __: float) -> StateAndEvent:
    return replace(heard, retrying=False), f"{_round(heard)}nobody waits for the reply any more"


def _gave_up(heard: NodeLogState, _: tuple[str, ...], __: float) -> StateAndEvent:
    return replace(heard, gave_up=True), "the connection broke and the node gave up on it"


def _code(heard: NodeLogState, found: tuple[str, ...], _: float) -> StateAndEvent:
    return replace(heard, code=found[0]), ""


def _round(heard: NodeLogState) -> str:
    return f"round {heard.round}: " if heard.round else ""


Rule: TypeAlias = Callable[[NodeLogState, tuple[str, ...], float], StateAndEvent]
RULES: Mapping[re.Pattern[str], Rule] = {
    re.compile(r"SuperNode ID: \d+"): _connected,
    re.compile(r"Connection attempt failed, retrying"): _retrying,
    re.compile(r"Connection successful after ([\d.]+) seconds"): _reached,
    re.compile(r"\[RUN (\d+)(?:, ROUND (\w+))?\]"): _message,
    re.compile(r"Receiving: (\w+)"): _order,
    re.compile(r"Sent successfully"): _reply,
    re.compile(r"Run ID \d+ is not in `RUNNING` status. Ignoring reply"): _too_late,
    re.compile(r"Giving up reconnection"): _gave_up,
    re.compile(r"Exit Code: (\d+)"): _code,
    re.compile(r"\[code: (\d+)\]"): _code,
}
