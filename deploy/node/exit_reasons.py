"""Why a node exited, in plain words, and the pause before its next start. Pure."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from deploy.node.supernode_log import NodeLogState

Kind: TypeAlias = Literal[
    "refused", "normal", "version", "killed", "failed", "gave up", "no app process"
]
NOT_ACTIVATED, OTHER_VERSION = "2004", "606"  # Flower's codes
HEALTHY_SECONDS = 60.0  # a node that ran this long starts the count of tries at 1
STILL_ONLINE_SECONDS = 75.0  # the server misses a killed node after two heartbeats of 30 s
PAUSES: Mapping[Kind, float] = {"refused": 15.0, "version": 60.0}
LONGEST_PAUSE = 30.0  # seconds


@dataclass(frozen=True)
class NodeExit:
    """The last exit of a node, with what earlier exits add to its explanation.

    Attributes:
        kind: why the node exited.
        tries: number of exits in a row of this kind.
        code: exit code, negative for a signal; None when the app process exited first.
        flower: Flower's own code, "" if there was none.
        killed: when a connected node was last killed (monotonic seconds), None for never.
        now: when this exit happened (monotonic seconds).
    """

    kind: Kind = "failed"
    tries: int = 0
    code: int | None = 0
    flower: str = ""
    killed: float | None = None
    now: float = 0.0

    def after(
        self, state: NodeLogState, code: int | None, *, lasted: float, now: float
    ) -> "NodeExit":
        """Return the next exit.

        Args:
            state: what the node's log says.
            code: exit code of the node, None when the app process exited first.
            lasted: seconds that the node ran.
            now: when it exited (monotonic seconds).
        """
        kind = _kind(state, code)
        is_repeated = kind == self.kind and lasted < HEALTHY_SECONDS
        killed = now if state.connected and kind == "killed" else self.killed
        return NodeExit(kind, self.tries + 1 if is_repeated else 1, code, state.code, killed, now)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next start."""
        return PAUSES.get(self.kind, min(2.0 ** (self.tries - 1), LONGEST_PAUSE))


def _kind(state: NodeLogState, code: int | None) -> Kind:
    if state.gave_up:
        return "gave up"
    if code is None:
        return "no app process"
    if code < 0:
        return "killed"
    known: Mapping[str, Kind] = {NOT_ACTIVATED: "refused", OTHER_VERSION: "version"}
    # Flower's node exits with code 0 when the server answers 401, as after a stop by hand.
    return known.get(state.code, "failed" if code else "normal")


def exit_reason(node_exit: NodeExit, name: str, fingerprint: str, clock: str) -> str:
    """Return why a node exited and what to do.

    Args:
        node_exit: the exit.
        name: the client's name.
        fingerprint: fingerprint of its key.
        clock: what is wrong with this machine's clock, "" for nothing.
    """
    client = f'client "{name}" (key {fingerprint})'
    return REASONS[node_exit.kind](node_exit, client, name, clock)


def _refused(node_exit: NodeExit, client: str, name: str, _: str) -> str:
    if node_exit.killed is not None and node_exit.now - node_exit.killed < STILL_ONLINE_SECONDS:
        return (
            f"the server still counts the node of {client} that was killed "
            f"{node_exit.now - node_exit.killed:.0f} s ago as online. It accepts a new node about "
            "a minute after the old one ended"
        )
    return (
        f"the server does not let {client} in. Either the client is not enrolled: then send "
        f"{name}.pub to the operator, who runs: fedkeel enroll {name} --key {name}.pub. Or it was "
        "revoked, and needs a new key. Or another node with the same key is online, or was killed "
        "or had a wrong clock less than a minute ago"
    )


def _normal(_: NodeExit, client: str, __: str, clock: str) -> str:
    if clock:
        return f"the server does not accept the signatures of {client}: {clock}"
    return (
        f"the node of {client} exited normally: it was stopped on this machine, or the server "
        "rejected its key (was the client revoked?)"
    )


def _version(_: NodeExit, client: str, __: str, ___: str) -> str:
    return (
        f"the server runs another version of Flower than {client}; install the version of FedKeel "
        "that the operator names"
    )


def _killed(node_exit: NodeExit, client: str, _: str, __: str) -> str:
    assert node_exit.code is not None
    try:
        name = signal.Signals(-node_exit.code).name
    except ValueError:
        name = f"signal {-node_exit.code}"
    memory = " (by hand, or because the machine ran out of memory)" if name == "SIGKILL" else ""
    return f"the node of {client} was ended by {name}{memory}"


def _failed(node_exit: NodeExit, client: str, _: str, clock: str) -> str:
    flower = f", Flower's code {node_exit.flower}" if node_exit.flower else ""
    hint = f"; {clock}" if clock else ""
    return f"the node of {client} exited with code {node_exit.code}{flower}{hint}; see its log"


def _gave_up(_: NodeExit, client: str, __: str, ___: str) -> str:
    return f"the node of {client} stopped trying to reach the server; it is started again"


def _no_app_process(_: NodeExit, client: str, __: str, ___: str) -> str:
    return f"the app process of {client} exited; it is started again, with its node"


REASONS: Mapping[Kind, Callable[[NodeExit, str, str, str], str]] = {
    "refused": _refused,
    "normal": _normal,
    "version": _version,
    "killed": _killed,
    "failed": _failed,
    "gave up": _gave_up,
    "no app process": _no_app_process,
}
