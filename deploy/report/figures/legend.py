"""The legend below a figure and its entries."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from deploy.report.figures.canvas import SMALL, one_line_name
from deploy.report.figures.style import FAINT, INK, MUTED, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND_ROWS = 2  # that fit the default height
LEGEND_ROOM = 62  # characters of the small size across the figure


def legend(figure: "Figure", handles: Iterable[Any]) -> None:
    """Draw the legend below the axes, in as many columns as fit."""
    handles = list(handles)
    widths = [len(handle.get_label()) + 6 for handle in handles]
    columns = len(handles) if sum(widths) <= LEGEND_ROOM else LEGEND_ROOM // max(widths, default=1)
    if not handles:
        return
    more = -(-len(handles) // max(1, columns)) - LEGEND_ROWS
    if more > 0:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.21 * more)
    drawn = figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=max(1, columns),
        frameon=False,
        fontsize=SMALL,
        labelcolor=INK,
        handlelength=1.7,
        columnspacing=1.4,
        handletextpad=0.6,
        borderaxespad=0.2,
    )
    for text in drawn.get_texts():
        text.set_parse_math(False)


def legend_entry(name: str, colour: Any, **look: Any) -> Any:
    """Return a legend entry: a line, or a marker with `linestyle="none"`."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, label=one_line_name(name, 48), **look)


def curve_entries(series: Sequence[Series]) -> list[Any]:
    """Return one legend entry per coloured curve, and one for all other curves."""
    shown = [each for each in series if not each.style.faint]
    others = len(series) - len(shown)
    entries = [
        legend_entry(s.name, s.style.colour, linewidth=2.2, linestyle=s.style.line) for s in shown
    ]
    return entries + ([legend_entry(f"{others} others", MUTED, alpha=0.5)] if others else [])


def point_entries(series: Sequence[Series]) -> list[Any]:
    """Return one legend entry per coloured point, and one for all other points."""
    shown = [each for each in series if each.style is not FAINT]
    shown.sort(key=lambda each: each.style.faint)
    others = len(series) - len(shown)
    look: dict[str, Any] = {"linestyle": "none", "markersize": 7}
    entries = [legend_entry(s.name, s.style.colour, marker=s.style.marker, **look) for s in shown]
    rest = legend_entry(
        f"{others} others", MUTED, marker="o", linestyle="none", markersize=4, alpha=0.4
    )
    return [*entries, rest] if others else entries
