"""LiveState: what a run is doing at this moment, in a small file beside its records."""

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
SIGN_SECONDS = 2.0  # between two signs of life while nothing changes


@dataclass(frozen=True)
class LiveState:
    """One look at a run; times are seconds since 1970.

    Attributes:
        phase: "waiting for clients", "training", "evaluating" or "calibrating".
        round: the round under way, 0 before the first.
        rounds: the last round that is wanted, as far as it is known.
        since: when this phase began.
        deadline: until when it waits; None if it does not.
        ready: clients that are connected and can take part.
        refused: why other connected clients cannot.
        asked: clients that were sent an order.
        answered: seconds that each reply took.
        again: clients that were asked again because they had been lost.
        missing: why a reply will not be used, as far as that is known.
        late: replies to earlier rounds that came too late.
        updated: when the run last gave this sign of life.
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
        """Return the look of a run that waits for its quorum."""
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
        """Clients that were asked and may still answer."""
        return [c for c in self.asked if c not in self.answered and c not in self.missing]


class LiveStateFile:
    """Writes `live.json` when something changed, and every two seconds as a sign of life."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LIVE
        self._last: LiveState | None = None
        self._when = 0.0

    def show(self, live: LiveState) -> None:
        """Write what is going on; a full disk is no reason to end a run, so it is not told here."""
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
    """Return what a run was doing when it last gave a sign; None if it never did."""
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
    """Forget what an earlier run in this folder did last."""
    (folder / LIVE).unlink(missing_ok=True)
