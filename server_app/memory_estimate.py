"""The server's estimated peak memory, computed before training."""

from dataclasses import dataclass
from typing import Any

from common.layout import Layout
from common.methods import Method

FLOAT = 4  # bytes
MODELS = 8  # copies in a round: old, new, mean, step and packed models


@dataclass(frozen=True)
class MemoryEstimate:
    """Upper bound on the bytes that the rounds add to the server program's memory.

    Attributes:
        remembered: clients' vectors in the state of the method.
        replies: the replies of a round. The method's own vectors count three times: as sent, as
            received and as arrays.
        updates: the same replies as displacements.
        models: the copies of the model.
        working: working memory of the method, for example products of clients' vectors.
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
        """Return the estimate.

        Args:
            method: the method with its settings.
            layout: layout of the model, with d floats.
            clients: number of clients of the federation, N.
            asked: sampled clients of a round, including over-selection.
            on_disk: whether clients' vectors are in files.
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
        """The sum of all parts in bytes."""
        return sum(vars(self).values())

    def __str__(self) -> str:
        parts = (f"{_megabytes(size)} {name}" for name, size in vars(self).items() if size)
        return f"{_megabytes(self.total)} MB ({', '.join(parts)})"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}" if size < 1e7 else f"{size / 1e6:,.0f}"
