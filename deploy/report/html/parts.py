"""The data that the templates show: parts of a page, tables and their cells."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from deploy.report.fallback import with_fallback
from deploy.report.figures.style import Series

T = TypeVar("T")


@dataclass(frozen=True)
class Part(Generic[T]):
    """A part of the page, or the reason why it is missing.

    Attributes:
        content: None or empty if the study has nothing to show here.
        problem: error message, "" without an error.
    """

    content: T | None
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.content or self.problem)


def part(name: str, make: Callable[[], T | None]) -> Part[T]:
    """Return the part that `make` returns. An exception becomes its `problem`."""
    return with_fallback(
        name, lambda: Part(make()), lambda problem: Part(content=None, problem=problem)
    )


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the content.
        look: HTML element around the text: bold, emphasised, or none.
        small: a second line in small print.
        swatch: number of the colour in front of the text, from 1. 0 is grey, None is no swatch.
    """

    text: str
    look: Literal["b", "em", ""] = ""
    small: str = ""
    swatch: int | None = None


@dataclass(frozen=True)
class TableData:
    """A table. The first cell of a row is the head of the row.

    Attributes:
        heads: of the columns.
        rows: one cell per column.
        note: explanation below the table.
        look: CSS class, "words" or "reasons" for tables of text.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    look: Literal["words", "reasons", ""] = ""

    def __bool__(self) -> bool:
        return bool(self.rows)


def cells(*values: object) -> list[Cell]:
    """Return a row. Values that are not cells become the text of one."""
    return [value if isinstance(value, Cell) else Cell(str(value)) for value in values]


def name_cell(series: Series) -> Cell:
    """Return the name of a family behind its colour in the figures."""
    return Cell(series.name, swatch=series.style.place)


def percent(share: float) -> str:
    """Format a share in [0, 1]."""
    return f"{100 * share:.1f} %"


@dataclass(frozen=True)
class ClientBar:
    """A client's accuracy as a bar: name, width in per cent, accuracy as text, test samples."""

    name: str
    width: str
    accuracy: str
    examples: int


@dataclass(frozen=True)
class LowestClients:
    """The clients with the lowest accuracy in one family."""

    name: Cell
    clients: Sequence[ClientBar]


@dataclass(frozen=True)
class Remark:
    """Text and tables below a group of figures."""

    cards: Sequence[LowestClients] = ()
    warnings: Sequence[str] = ()
    table: TableData | None = None


@dataclass(frozen=True)
class SettingsCard:
    """Settings by config key, as text."""

    title: str
    settings: Sequence[tuple[str, str]] = field(default_factory=list)
