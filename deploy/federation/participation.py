"""The clients of a run: current state, last reply and missed rounds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.table import Table

from common.io.text import single_line
from common.runs.live_state import LiveState
from common.runs.records import RoundRecord
from common.types import ClientId, by_client

FEW_CLIENTS = 20  # up to this number, every client is listed
# States of a client, problems first. "" after the run has ended.
STATES = ("refused", "offline", "missing", "asked again", "at work", "answered", "ready", "")
HEALTHY = {"answered", "ready", ""}


@dataclass(frozen=True)
class Participation:
    """The state of each client of a run.

    Attributes:
        live: The live state that the run wrote last.
        states: One of STATES for each client that is connected, refused or was in the last round.
        newest: The last round to which each client replied.
        drops: The rounds from which each client was dropped.
    """

    live: LiveState
    states: Mapping[ClientId, str]
    newest: Mapping[ClientId, RoundRecord]
    drops: Mapping[ClientId, list[RoundRecord]]

    @classmethod
    def of(
        cls, live: LiveState | None, records: Sequence[RoundRecord], *, is_over: bool
    ) -> "Participation":
        """Return the participation in a run, from its live state and its records."""
        live = live or LiveState("", 0, 0, 0.0)
        states = dict.fromkeys(records[-1].cohort if records else (), "offline")
        for state, clients in (  # the last match wins
            ("ready", live.ready), ("at work", live.asked), ("asked again", live.again),
            ("missing", live.missing), ("answered", live.answered), ("refused", live.refused),
        ):  # fmt: skip
            states |= dict.fromkeys(clients, state)
        drops: dict[ClientId, list[RoundRecord]] = {}
        for record in records:
            for client in record.dropped:
                drops.setdefault(client, []).append(record)
        newest = {client: record for record in records for client in record.replied}
        return cls(live, dict.fromkeys(states, "") if is_over else states, newest, drops)

    @cached_property
    def clients(self) -> list[ClientId]:
        """All clients, sorted by id."""
        return sorted(self.states, key=by_client)

    @property
    def listed_clients(self) -> list[ClientId]:
        """All clients, or at most FEW_CLIENTS with problems, the worst first, if there are more."""
        if len(self.clients) <= FEW_CLIENTS:
            return self.clients
        listed = [c for c in self.clients if self.states[c] not in HEALTHY or c in self.drops]
        listed.sort(key=lambda c: (STATES.index(self.states[c]), -len(self.drops.get(c, ()))))
        return listed[:FEW_CLIENTS]

    def __str__(self) -> str:
        counts = Counter(self.states.values())
        parts = [f"{counts[state]:,} {state}" for state in STATES if state and counts[state]]
        noun = "client" if len(self.states) == 1 else "clients"
        return f"{len(self.states):,} {noun}" + (f": {', '.join(parts)}" if parts else "")

    def table(self, clients: Iterable[ClientId]) -> Table:
        """Return a table with one row per client."""
        table = Table(box=None, pad_edge=False)
        for title, justify in (
            ("client", "left"), ("now", "left"), ("last reply", "right"), ("s", "right"),
            ("MB down", "right"), ("MB up", "right"), ("dropped", "right"), ("last reason", "left"),
        ):  # fmt: skip
            table.add_column(title, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for client in clients:
            table.add_row(single_line(client), *self._row(client))
        return table

    def _row(self, client: ClientId) -> Sequence[str]:
        newest, drops = self.newest.get(client), self.drops.get(client, [])
        reason = drops[-1].dropped[client] if drops else ""
        return (
            single_line(self._state(client)),
            f"round {newest.round}" if newest else "",
            f"{newest.arrived[client]:.1f}" if newest and client in newest.arrived else "",
            *(
                f"{sent[client] / 1e6:.2f}" if client in sent else ""
                for sent in ((newest.bytes_down, newest.bytes_up) if newest else ({}, {}))
            ),
            str(len(drops)) if drops else "",
            single_line(self.live.refused.get(client) or reason),
        )

    def _state(self, client: ClientId) -> str:
        state = self.states[client]
        if state == "answered":
            return f"answered in {self.live.answered[client]:.1f} s"
        return self.live.missing[client] if state == "missing" else state
