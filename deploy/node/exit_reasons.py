"""Why a node's life ended, in plain words, and how long to wait before the next. Pure."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from deploy.node.supernode_log import NodeLogState

Kind: TypeAlias = Literal[
    "refused", "left", "version", "killed", "failed", "gave up", "no app process"
]
NOT_ACTIVATED, OTHER_VERSION = "2004", "606"  # Flower's codes
HEALTHY_SECONDS = 60.0  # a life that lasted so long starts the count anew
STILL_ONLINE_SECONDS = 75.0  # the server misses a killed node after two heartbeats of 30 s
PAUSES: Mapping[Kind, float] = {"refused": 15.0, "version": 60.0}
LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class NodeExit:
    """The last life of a node, and what the ones before it leave to know.

    Attributes:
        kind: why it ended.
        tries: lives in a row that ended so.
        code: exit code, negative for a signal; None when its app process was the one that ended.
        flower: Flower's own code, "" if it gave none.
        killed: when a node that was connected last ended without taking its leave.
        now: when this life ended.
    """

    kind: Kind = "failed"
    tries: int = 0
    code: int | None = 0
    flower: str = ""
    killed: float | None = None
    now: float = 0.0

    def after(
        self, heard: NodeLogState, code: int | None, *, lasted: float, now: float
    ) -> "NodeExit":
        """Return what is to know when the next life has ended (seconds)."""
        kind = _kind(heard, code)
        goes_on = kind == self.kind and lasted < HEALTHY_SECONDS
        killed = now if heard.connected and kind == "killed" else self.killed
        return NodeExit(kind, self.tries + 1 if goes_on else 1, code, heard.code, killed, now)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next life."""
        return PAUSES.get(self.kind, min(2.0 ** (self.tries - 1), LONGEST_PAUSE))


def _kind(heard: NodeLogState, code: int | None) -> Kind:
    if heard.gave_up:
        return "gave up"
    if code is None:
        return "no app process"
    if code < 0:
        return "killed"
    known: Mapping[str, Kind] = {NOT_ACTIVATED: "refused", OTHER_VERSION: "version"}
    # A node that is told 401 ends as if somebody had asked it to, with exit code 0.
    return known.get(heard.code, "failed" if code else "left")


def exit_reason(life: NodeExit, name: str, fingerprint: str, clock: str) -> str:
    """Say why a node's life ended and what to do.

    Args:
        life: the life that ended.
        name: the client's.
        fingerprint: its key's.
        clock: what is wrong with this machine's clock, "" for nothing.
    """
    return REASONS[life.kind](life, f'client "{name}" (key {fingerprint})', name, clock)


def _refused(life: NodeExit, client: str, name: str, _: str) -> str:
    if life.killed is not None and life.now - life.killed < STILL_ONLINE_SECONDS:
        return (
            f"the server still counts the node of {client} that was killed "
            f"{life.now - life.killed:.0f} s ago as online; it lets a new one in about a minute "
            "after the end of the old one"
        )
    return (
        f"the server does not let {client} in. Either it is not enrolled: then send {name}.pub to "
        f"the operator, who runs: fedkeel enroll {name} --key {name}.pub. Or it was revoked, which "
        "takes a new key. Or another node with the same key is online, or was killed or had a "
        "wrong clock less than a minute ago"
    )


def _left(_: NodeExit, client: str, __: str, clock: str) -> str:
    if clock:
        return f"the server does not accept the signatures of {client}: {clock}"
    return (
        f"the node of {client} took its leave: somebody ended it on this machine, or the server "
        "does not accept its signatures any more, as those of a client that was revoked"
    )


def _version(_: NodeExit, client: str, __: str, ___: str) -> str:
    return (
        f"the server runs another version of Flower than {client}; install the version of FedKeel "
        "that the operator names"
    )


def _killed(life: NodeExit, client: str, _: str, __: str) -> str:
    assert life.code is not None
    try:
        name = signal.Signals(-life.code).name
    except ValueError:
        name = f"signal {-life.code}"
    memory = " (by hand, or because the machine ran out of memory)" if name == "SIGKILL" else ""
    return f"the node of {client} was ended by {name}{memory}"


def _failed(life: NodeExit, client: str, _: str, clock: str) -> str:
    flower = f", Flower's code {life.flower}" if life.flower else ""
    hint = f"; {clock}" if clock else ""
    return f"the node of {client} ended with exit code {life.code}{flower}{hint}; see its log"


def _gave_up(_: NodeExit, client: str, __: str, ___: str) -> str:
    return f"the node of {client} gave up on a connection that broke; it is started anew"


def _no_app_process(_: NodeExit, client: str, __: str, ___: str) -> str:
    return f"the app process of {client} ended; its node is started anew with it"


REASONS: Mapping[Kind, Callable[[NodeExit, str, str, str], str]] = {
    "refused": _refused,
    "left": _left,
    "version": _version,
    "killed": _killed,
    "failed": _failed,
    "gave up": _gave_up,
    "no app process": _no_app_process,
}
