"""The clients of a run: what each does now, what it last sent, and the rounds that it missed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.table import Table

from common.io.text import single_line
from common.runs.live_state import LiveState
from common.runs.records import RoundRecord
from common.types import ClientId, by_client

FEW_CLIENTS = 20  # so many are listed whatever they do
# What clients may be doing, those first that need a look; "" once the run is over.
DOING = ("refused", "offline", "missing", "asked again", "at work", "answered", "ready", "")
WELL = {"answered", "ready", ""}


@dataclass(frozen=True)
class Participation:
    """Who is there, who is late and who is not coming.

    Attributes:
        live: the last look at the run.
        doing: one of DOING for each client that is known: connected, refused, or of the last round.
        newest: the last round to which each client replied.
        drops: the rounds that went on without each client.
    """

    live: LiveState
    doing: Mapping[ClientId, str]
    newest: Mapping[ClientId, RoundRecord]
    drops: Mapping[ClientId, list[RoundRecord]]

    @classmethod
    def of(
        cls, live: LiveState | None, records: Sequence[RoundRecord], *, is_over: bool
    ) -> "Participation":
        """Return the turnout of a run by its last look and its records."""
        live = live or LiveState("", 0, 0, 0.0)
        doing = dict.fromkeys(records[-1].cohort if records else (), "offline")
        for what, clients in (  # the later ones count
            ("ready", live.ready), ("at work", live.asked), ("asked again", live.again),
            ("missing", live.missing), ("answered", live.answered), ("refused", live.refused),
        ):  # fmt: skip
            doing |= dict.fromkeys(clients, what)
        drops: dict[ClientId, list[RoundRecord]] = {}
        for record in records:
            for client in record.dropped:
                drops.setdefault(client, []).append(record)
        newest = {client: record for record in records for client in record.replied}
        return cls(live, dict.fromkeys(doing, "") if is_over else doing, newest, drops)

    @cached_property
    def clients(self) -> list[ClientId]:
        """All of them, by id."""
        return sorted(self.doing, key=by_client)

    @property
    def worth_a_look(self) -> list[ClientId]:
        """All if they are few; else at most FEW_CLIENTS, those in trouble first."""
        if len(self.clients) <= FEW_CLIENTS:
            return self.clients
        ours = [c for c in self.clients if self.doing[c] not in WELL or c in self.drops]
        ours.sort(key=lambda c: (DOING.index(self.doing[c]), -len(self.drops.get(c, ()))))
        return ours[:FEW_CLIENTS]

    def __str__(self) -> str:
        counts = Counter(self.doing.values())
        parts = [f"{counts[what]:,} {what}" for what in DOING if what and counts[what]]
        one = "client" if len(self.doing) == 1 else "clients"
        return f"{len(self.doing):,} {one}" + (f": {', '.join(parts)}" if parts else "")

    def table(self, clients: Iterable[ClientId]) -> Table:
        """Return a table with a line for each of these clients."""
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
            single_line(self._now(client)),
            f"round {newest.round}" if newest else "",
            f"{newest.arrived[client]:.1f}" if newest and client in newest.arrived else "",
            *(
                f"{sent[client] / 1e6:.2f}" if client in sent else ""
                for sent in ((newest.bytes_down, newest.bytes_up) if newest else ({}, {}))
            ),
            str(len(drops)) if drops else "",
            single_line(self.live.refused.get(client) or reason),
        )

    def _now(self, client: ClientId) -> str:
        doing = self.doing[client]
        if doing == "answered":
            return f"answered in {self.live.answered[client]:.1f} s"
        return self.live.missing[client] if doing == "missing" else doing
