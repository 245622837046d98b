"""Empty figures, and the axes and texts that all figures share."""

import math
from collections.abc import Sequence
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

from common.io.text import printable
from deploy.report.figures.style import INK, LINE, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (5.6, 3.7)  # inches. A phone shows a figure 330 pixels wide.
TEXT, SMALL = 11.5, 10.5  # points
HIGH = 0.4  # above this accuracy, an axis does not begin at 0
HEAD_ROOM = 54  # characters of the small size above the axes


def canvas(
    across: str = "",
    up: str = "",
    rows: int = 1,
    columns: int = 1,
    height: float = SIZE[1],
    **more: Any,
) -> "tuple[Figure, list[Axes]]":
    """Return an empty figure and its axes, row by row. The y label is above the axes.

    Args:
        across: label of the x axis, in the lowest row.
        up: label of the y axis, above the first axes.
        rows: of axes.
        columns: of axes.
        height: of the figure in inches.
        more: arguments of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **more)
    for axes in grid.flat:
        clear_axes(axes)
    for axes in grid[-1]:
        axes.set_xlabel(across, fontsize=SMALL, color=MUTED)
    set_heading(grid[0][0], up)
    return figure, list(grid.flat)


def clear_axes(axes: "Axes") -> None:
    """Remove frame, ticks and vertical grid lines."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(labelsize=SMALL, colors=MUTED, length=0, pad=5)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_facecolor("none")


def set_heading(axes: "Axes", text: str) -> None:
    """Write the label of the y axis above it, in horizontal text."""
    look: dict[str, Any] = {"fontsize": SMALL, "color": MUTED, "pad": 7, "parse_math": False}
    axes.set_title(one_line_name(text, HEAD_ROOM), loc="left", **look)


def percent(axis: Any) -> None:
    """Format the ticks of an axis of shares as per cent."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g} %"))


def whole_numbers(axis: Any) -> None:
    """Place ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]))


def accuracy_axis(axes: "Axes", lowest: float, highest: float) -> None:
    """Start the y axis at 0, or at the next lower 10 % if all accuracies are above 40 %."""
    bottom = math.floor(lowest * 10 - 0.05) / 10 if lowest > HIGH else 0.0
    axes.set_ylim(bottom, min(1 + 0.02 * (1 - bottom), highest + 0.06 * (highest - bottom) + 0.01))
    percent(axes.yaxis)


def write_text(axes: "Axes", x: float, y: float, text: str, **more: Any) -> Any:
    """Write text into the axes without parsing mathematics, because names may contain `$`."""
    look: dict[str, Any] = {"fontsize": SMALL, "color": MUTED, "parse_math": False, **more}
    return axes.text(x, y, printable(text), **look)


def set_names(axis: Any, names: Sequence[str], width: int = 18, lines: int = 2) -> None:
    """Write names at the positions 0, 1, ... of an axis.

    Args:
        axis: x or y axis.
        names: shortened to `lines` lines of `width` characters.
        width: characters in a line.
        lines: at most.
    """
    axis.set_ticks(
        range(len(names)), [fill(one_line_name(name, lines * width), width) for name in names]
    )
    for label in axis.get_ticklabels():
        label.set(color=INK, fontsize=SMALL, parse_math=False)


def one_line_name(text: str, longest: int) -> str:
    """Return a name as one line. matplotlib hides legend entries that begin with _."""
    line = shorten(printable(text), longest, placeholder=" ...") or printable(text)[:longest]
    return f" {line}" if line.startswith("_") else line
