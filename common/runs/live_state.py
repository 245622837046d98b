"""`live.json`: the present state of a run."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.io.files import atomic_write
from common.types import ClientId

LIVE = "live.json"
SHAPES: Mapping[Any, tuple[str, ...]] = {
    str: ("phase",),
    int: ("round", "rounds"),
    (int, float): ("since", "updated"),
    list: ("ready", "asked", "again"),
    dict: ("refused", "answered", "missing", "late"),
}
INSIDE: Mapping[Any, tuple[str, ...]] = {
    str: ("ready", "asked", "again", "refused", "missing", "late"),
    (int, float): ("answered",),
}
SIGN_SECONDS = 2.0  # between two writes while nothing changes


@dataclass(frozen=True)
class LiveState:
    """The state of a run at one moment. Times are seconds since 1970.

    Attributes:
        phase: "waiting for clients", "training", "evaluating" or "calibrating".
        round: the current round, 0 before the first.
        rounds: the last round of the run, 0 if unknown.
        since: start of this phase.
        deadline: end of the wait, None without one.
        ready: clients that are connected and can take part.
        refused: the reason why each other connected client cannot.
        asked: clients that got an order.
        answered: seconds from the order to the reply, by client.
        again: clients that got the order again, because they were lost during the round.
        missing: the reason why a reply will not be used, by client, if known.
        late: replies to earlier rounds that came after the deadline.
        updated: time of the last write.
    """

    phase: str
    round: int
    rounds: int
    since: float
    deadline: float | None = None
    ready: list[ClientId] = field(default_factory=list)
    refused: dict[ClientId, str] = field(default_factory=dict)
    asked: list[ClientId] = field(default_factory=list)
    answered: dict[ClientId, float] = field(default_factory=dict)
    again: list[ClientId] = field(default_factory=list)
    missing: dict[ClientId, str] = field(default_factory=dict)
    late: dict[ClientId, str] = field(default_factory=dict)
    updated: float = 0.0

    @classmethod
    def waiting(
        cls,
        ready: list[ClientId],
        refused: Mapping[ClientId, str],
        server_round: int,
        rounds: int,
        since: float,
        timeout: float,
    ) -> "LiveState":
        """Return the live state of a run that waits for its quorum."""
        return cls(
            "waiting for clients",
            server_round,
            rounds,
            since,
            since + timeout,
            ready=ready,
            refused=dict(refused),
        )

    @property
    def awaited(self) -> list[ClientId]:
        """Clients that got an order and may still reply."""
        return [c for c in self.asked if c not in self.answered and c not in self.missing]


class LiveStateFile:
    """Writes `live.json` on every change, and every two seconds without one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LIVE
        self._last: LiveState | None = None
        self._when = 0.0

    def show(self, live: LiveState) -> None:
        """Write the live state. A full disk is ignored, because it is no reason to end a run."""
        now = time.time()
        if live == self._last and now - self._when < SIGN_SECONDS:
            return
        self._last, self._when = live, now
        try:
            with atomic_write(self.path, durable=False) as file:
                file.write(json.dumps({**vars(live), "updated": now}).encode())
        except OSError:
            return


def read_live_state(folder: Path) -> LiveState | None:
    """Return the last live state of a run, None if it never wrote one."""
    try:
        said: dict[str, Any] = json.loads((folder / LIVE).read_bytes())
        live = LiveState(**said)
    except (OSError, ValueError, TypeError):
        return None
    return live if _fits(live) else None


def _fits(live: LiveState) -> bool:
    kinds = {kind: [getattr(live, name) for name in names] for kind, names in SHAPES.items()}
    if not all(isinstance(value, kind) for kind, values in kinds.items() for value in values):
        return False
    held = {kind: [getattr(live, name) for name in names] for kind, names in INSIDE.items()}
    parts = (
        isinstance(part, kind)
        for kind, values in held.items()
        for value in values
        for part in (value.values() if isinstance(value, dict) else value)
    )
    return isinstance(live.deadline, int | float | None) and all(parts)


def clear_live_state(folder: Path) -> None:
    """Remove the live state of an earlier run in this directory."""
    (folder / LIVE).unlink(missing_ok=True)
