"""How much memory the server needs at most, known before anything is trained."""

from dataclasses import dataclass
from typing import Any

from common.layout import Layout
from common.methods import Method

FLOAT = 4  # bytes
MODELS = 8  # in a round, beside history and replies: the old, the new, the mean, the step, as sent


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a server's rounds need at their peak, beside those of the program itself.

    Attributes:
        remembered: what the method keeps of clients from round to round.
        replies: a round's replies as they came; the method's own vectors as they were sent, as
            they came, and as arrays.
        updates: the same replies as displacements.
        models: the model in its several forms.
        working: products of clients' vectors, and what else the method works with.
    """

    remembered: int
    replies: int
    updates: int
    models: int
    working: int

    @classmethod
    def of(
        cls, method: Method[Any], layout: Layout, *, clients: int, asked: int, on_disk: bool = False
    ) -> "MemoryEstimate":
        """Return the bound.

        Args:
            method: with its settings.
            layout: the model's, with d floats.
            clients: N.
            asked: clients of a round, those asked beyond the cohort included.
            on_disk: whether what is remembered lies in files.
        """
        buffers = sum(tensor.size for tensor in layout.buffers)
        model = FLOAT * (layout.size + 2 * buffers)  # buffers travel in double precision
        client_payload = FLOAT * sum(method.expected_payload(method.init(layout)).values())
        remembered = 0 if on_disk else FLOAT * method.state_floats(layout, clients, asked)
        return cls(
            remembered=remembered,
            replies=asked * (model + 3 * client_payload),
            updates=asked * model,
            models=MODELS * model,
            working=FLOAT * method.working_floats(layout, clients, asked),
        )

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())

    def __str__(self) -> str:
        parts = (f"{_megabytes(size)} {name}" for name, size in vars(self).items() if size)
        return f"{_megabytes(self.total)} MB ({', '.join(parts)})"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}" if size < 1e7 else f"{size / 1e6:,.0f}"
