"""Read the log lines of a SuperNode and its app processes, as one event per line. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from common.io.text import single_line

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEVEL = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) ?: *")
GRAVE = re.compile(r"(?:WARNING|ERROR|CRITICAL) ?: *(.+)")
HARMLESS = re.compile(  # warnings of Flower that need no action
    r"EXPERIMENTAL: SuperExec auth|Connection attempt failed, retrying"
)
FULL = re.compile(r"[\w.]+: .*No space left on device")  # the last line of a traceback
DISK_FULL = "the disk is full: make room (df -h)"


@dataclass(frozen=True)
class NodeLogState:
    """The state of a node, read from its log lines since its start.

    Attributes:
        connected: whether the server accepted the node.
        retrying: whether the node is trying to reach the server again.
        node_id: Flower's id of the node, 0 while it is unknown.
        run: the run of the last message.
        round: the round of the last message, "" for a message outside of the rounds.
        since: when the last message came (monotonic seconds).
        busy: whether a ClientApp is working on that message.
        code: Flower's exit code or error code, "" while there is none.
        gave_up: whether the node has stopped trying to reach the server, although it still runs.
    """

    connected: bool = False
    retrying: bool = False
    node_id: int = 0
    run: str = ""
    round: str = ""
    since: float = 0.0
    busy: bool = False
    code: str = ""
    gave_up: bool = False


StateAndEvent: TypeAlias = tuple[NodeLogState, str]


def read_log_line(state: NodeLogState, line: str, now: float) -> StateAndEvent:
    """Return the state after a line of the SuperNode, and the event to print, "" for none.

    Args:
        state: the state before the line.
        line: the line as the process wrote it, with colours.
        now: when the line came (monotonic seconds).
    """
    text = LEVEL.sub("", without_colours(line))
    for pattern, rule in RULES.items():
        if match := pattern.match(text):
            state, event = rule(state, match.groups(), now)
            return state, single_line(event)
    return state, warning_text(line)


def warning_text(line: str) -> str:
    """Return the text of a warning or an error of any of the processes, "" for other lines."""
    if is_disk_full(line):
        return DISK_FULL
    match = GRAVE.match(without_colours(line))
    return single_line(match[1]) if match and not HARMLESS.match(match[1]) else ""


def is_disk_full(line: str) -> bool:
    """Return whether a line ends the traceback of a write to a full disk."""
    return FULL.match(without_colours(line)) is not None


def without_colours(line: str) -> str:
    """Return a line without its colours."""
    return COLOURS.sub("", line).rstrip()


def _connected(state: NodeLogState, groups: tuple[str, ...], _: float) -> StateAndEvent:
    return replace(state, connected=True, node_id=int(groups[0])), "connected: ready for orders"


def _retrying(state: NodeLogState, _: tuple[str, ...], __: float) -> StateAndEvent:
    event = "" if state.retrying else "the server cannot be reached; trying again until it can"
    return replace(state, retrying=True), event


def _reached(state: NodeLogState, groups: tuple[str, ...], _: float) -> StateAndEvent:
    event = f"the server can be reached again after {float(groups[0]):.0f} s"
    return replace(state, retrying=False), event if state.retrying else ""


def _message(state: NodeLogState, groups: tuple[str, ...], _: float) -> StateAndEvent:
    run, number = groups
    event = "" if run == state.run else f"takes part in run {run}"
    return replace(state, run=run, round=number or ""), event


def _order(state: NodeLogState, groups: tuple[str, ...], now: float) -> StateAndEvent:
    kind = "question" if groups[0] == "query" else f"{groups[0]} order"
    state = replace(state, since=now, retrying=False, busy=True)
    return state, f"{_round(state)}{kind} received"


def _work_done(state: NodeLogState, _: tuple[str, ...], __: float) -> StateAndEvent:
    return replace(state, busy=False), ""


def _reply(state: NodeLogState, _: tuple[str, ...], now: float) -> StateAndEvent:
    return state, f"{_round(state)}reply sent, {now - state.since:.1f} s after the order"


def _too_late(state: NodeLogState, _: tuple[str, ...], __: float) -> StateAndEvent:
    event = f"{_round(state)}the run has ended, so the server does not use the reply"
    return replace(state, retrying=False), event


def _gave_up(state: NodeLogState, _: tuple[str, ...], __: float) -> StateAndEvent:
    return replace(state, gave_up=True), "the connection broke, and the node stopped trying"


def _code(state: NodeLogState, groups: tuple[str, ...], _: float) -> StateAndEvent:
    return replace(state, code=groups[0]), ""


def _round(state: NodeLogState) -> str:
    return f"round {state.round}: " if state.round else ""


Rule: TypeAlias = Callable[[NodeLogState, tuple[str, ...], float], StateAndEvent]
RULES: Mapping[re.Pattern[str], Rule] = {
    re.compile(r"SuperNode ID: (\d+)"): _connected,
    re.compile(r"Connection attempt failed, retrying"): _retrying,
    re.compile(r"Connection successful after ([\d.]+) seconds"): _reached,
    re.compile(r"\[RUN (\d+)(?:, ROUND (\w+))?\]"): _message,
    re.compile(r"Receiving: (\w+)"): _order,
    re.compile(r"Sending: "): _work_done,
    re.compile(r"Sent successfully"): _reply,
    re.compile(r"Run ID \d+ is not in `RUNNING` status. Ignoring reply"): _too_late,
    re.compile(r"Giving up reconnection"): _gave_up,
    re.compile(r"Exit Code: (\d+)"): _code,
    re.compile(r"\[code: (\d+)\]"): _code,
}
