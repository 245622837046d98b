"""How all figures look: one canvas, the colours and what they are called in a page, the legend."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

from common.io.text import printable
from deploy.report.metrics import (
    OfFairness,
    evaluated,
    final,
    mean,
    name_of,
    reference,
    representative,
    worst10,
)
from deploy.report.run_groups import Family, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too; their yellow is too pale here.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
PAPER, INK, MUTED, LINE, WARN = "#FFFFFF", "#1D2330", "#646B78", "#DDE1E7", "#B3261E"
PAGE = "#F5F6F8"  # behind the figures
GOOD, BAD = COLOURS[0], COLOURS[1]  # of one number that has a sign, or that is only more or less
TOKENS: Mapping[str, tuple[str, str]] = {  # what a page calls each colour, and has for it at night
    PAGE: ("--page", "#0C0F13"),
    PAPER: ("--paper", "#161A20"),
    INK: ("--ink", "#E7EAEF"),
    MUTED: ("--muted", "#9AA3B0"),
    LINE: ("--line", "#2C333D"),
    WARN: ("--warn", "#FF8F85"),
    COLOURS[0]: ("--series-1", "#4FA8E3"),
    COLOURS[1]: ("--series-2", "#F08A45"),
    COLOURS[2]: ("--series-3", "#35C49A"),
    COLOURS[3]: ("--series-4", "#E2A5C9"),
    COLOURS[4]: ("--series-5", "#8FD2F5"),
    COLOURS[5]: ("--series-6", "#F0BC4A"),
    COLOURS[6]: ("--series-7", "#F4F6F9"),
}
MEASURES: Sequence[tuple[str, OfFairness, str, str, str]] = (  # what is drawn side by side
    ("mean", mean, GOOD, "o", "mean of clients"),
    ("worst10", worst10, BAD, "s", "worst 10 % of clients"),
)
MARKERS = ("o", "s", "^", "D")  # the next marker and line for each time round the colours
LINES = ("solid", "dashed", "dotted", "dashdot")
DASHES = (0, (3.2, 1.8))
SIZE = (5.6, 3.7)  # inches; a phone shows them 330 pixels wide
TEXT, SMALL = 11.5, 10.5  # points
HIGH = 0.4  # an accuracy from which an axis need not begin at 0
SHADES = 20  # of a heat map
LEGEND_ROWS = 2  # for which the usual height has room
HEAD_ROOM = 54  # characters of the small size above the axes
LEGEND_ROOM = 62  # characters of the small size across the figure


@dataclass(frozen=True)
class Style:
    """How one series is told from the others: a colour, then a marker and a line.

    Attributes:
        colour: of COLOURS, or that of what stays in the background.
        marker: of its points.
        line: of its curves.
        faint: whether it is one of the many that are not told apart.
    """

    colour: str
    marker: str = "o"
    line: str = "solid"
    faint: bool = False

    @classmethod
    def number(cls, index: int) -> "Style":
        """Return the style of the series at this place."""
        turn, place = divmod(index, len(COLOURS))
        turn %= len(MARKERS)
        return cls(COLOURS[place], MARKERS[turn], LINES[turn])

    @property
    def rank(self) -> int:
        """0 for what has a colour, 1 for the other methods, 2 for their variants."""
        return 2 if self is FAINT else int(self.faint)

    @property
    def place(self) -> int:
        """The colour's number among the page's, from 1; 0 for what stays in the background."""
        return 0 if self.faint else COLOURS.index(self.colour) + 1


FAINT = Style(MUTED, faint=True)


@dataclass(frozen=True)
class Series:
    """A family as it is drawn."""

    family: Family
    name: str
    style: Style


def series_of(study: Study) -> list[Series]:
    """Return the families that were evaluated, with a style each: the same in every figure.

    Where there are more than the colours can tell apart, the reference and what stands for each
    method have a colour, the highest first. The others stay in the background of curves; those
    come first, so that they are drawn below. Of them, what stands for a method has a marker and
    a colour of its own where points are drawn.
    """
    families = evaluated(study)
    if len(study.families) <= len(COLOURS):  # who has no result yet keeps a colour free
        places = [(f, place) for place, f in enumerate(study.families) if _among(f, families)]
        return [Series(f, name_of(f), Style.number(place)) for f, place in places]
    leaders = _leaders(study, families)
    front = [f for f in families if _among(f, leaders[: len(COLOURS)])]
    middle = leaders[len(COLOURS) :]
    back = [f for f in families if not _among(f, leaders)]
    styles = [replace(Style.number(len(COLOURS) + k), faint=True) for k in range(len(middle))]
    return [
        *(Series(family, name_of(family), FAINT) for family in back),
        *(Series(f, name_of(f), style) for f, style in zip(middle, styles, strict=True)),
        *(Series(f, name_of(f), Style.number(place)) for place, f in enumerate(front)),
    ]


def coloured_series(study: Study) -> list[Series]:
    """Return the series that have a colour of their own in curves."""
    return [each for each in series_of(study) if not each.style.faint]


def _leaders(study: Study, families: Sequence[Family]) -> list[Family]:
    """The reference, then what stands for each method, the highest first."""
    groups: dict[tuple[str, bool], list[Family]] = {}
    for family in families:
        groups.setdefault((family.method or family.label, family.personal), []).append(family)
    leaders = [leader for leader in map(representative, groups.values()) if leader]
    leaders.sort(key=lambda family: -getattr(final(family, mean), "mean", 0.0))
    base = reference(study)
    first = [base] if base else []
    return [*first, *(one for one in leaders if one is not base)]


def _among(family: Family, families: Sequence[Family]) -> bool:
    return any(family is one for one in families)


def canvas(
    across: str = "",
    up: str = "",
    rows: int = 1,
    columns: int = 1,
    height: float = SIZE[1],
    **more: Any,
) -> "tuple[Figure, list[Axes]]":
    """Return an empty figure and its axes, row by row; what goes up is told above the axes.

    Args:
        across: name of the horizontal axis, of the lowest row.
        up: name of the vertical axis, of the first axes.
        rows: of axes.
        columns: of axes.
        height: of the figure in inches.
        more: for `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **more)
    for axes in grid.flat:
        plain_axes(axes)
    for axes in grid[-1]:
        axes.set_xlabel(across, fontsize=SMALL, color=MUTED)
    headed(grid[0][0], up)
    return figure, list(grid.flat)


def plain_axes(axes: "Axes") -> None:
    """Take away whatever shows no data: frame, ticks, the vertical lines."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(labelsize=SMALL, colors=MUTED, length=0, pad=5)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_facecolor("none")


def headed(axes: "Axes", text: str) -> None:
    """Write what the vertical axis shows above it, where it can be read without turning."""
    look: dict[str, Any] = {"fontsize": SMALL, "color": MUTED, "pad": 7, "parse_math": False}
    axes.set_title(_short(text, HEAD_ROOM), loc="left", **look)


def percent(axis: Any) -> None:
    """Show shares as per cent, with no more decimals than a tick has."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g} %"))


def whole_numbers(axis: Any) -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]))


def accuracy_axis(axes: "Axes", lowest: float, highest: float) -> None:
    """Show accuracies from 0, or from the tens below the lowest where all of them are high."""
    bottom = math.floor(lowest * 10 - 0.05) / 10 if lowest > HIGH else 0.0
    axes.set_ylim(bottom, min(1 + 0.02 * (1 - bottom), highest + 0.06 * (highest - bottom) + 0.01))
    percent(axes.yaxis)


def write(axes: "Axes", x: float, y: float, text: str, **more: Any) -> Any:
    """Write into the axes as it stands: a name may hold what looks like mathematics."""
    look: dict[str, Any] = {"fontsize": SMALL, "color": MUTED, "parse_math": False, **more}
    return axes.text(x, y, printable(text), **look)


def legend(figure: "Figure", handles: Iterable[Any]) -> None:
    """Put the legend below, where it covers no data, in as many columns as there is room for."""
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


def key(name: str, colour: Any, **look: Any) -> Any:
    """Return an entry of the legend: a line, or a marker with `linestyle="none"`."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, label=_short(name, 48), **look)


def keys_of(series: Sequence[Series]) -> list[Any]:
    """Return the entries of the curves that are told apart, and one for all the others."""
    shown = [each for each in series if not each.style.faint]
    others = len(series) - len(shown)
    entries = [key(s.name, s.style.colour, linewidth=2.2, linestyle=s.style.line) for s in shown]
    return entries + ([key(f"{others} others", MUTED, alpha=0.5)] if others else [])


def points_of(series: Sequence[Series]) -> list[Any]:
    """Return the entries of the points that are told apart, and one for all the others."""
    shown = [each for each in series if each.style is not FAINT]
    shown.sort(key=lambda each: each.style.faint)
    others = len(series) - len(shown)
    look: dict[str, Any] = {"linestyle": "none", "markersize": 7}
    entries = [key(s.name, s.style.colour, marker=s.style.marker, **look) for s in shown]
    rest = key(f"{others} others", MUTED, marker="o", linestyle="none", markersize=4, alpha=0.4)
    return [*entries, rest] if others else entries


def _short(text: str, longest: int) -> str:
    """A name as one line of the figure; one that begins with _ would be left out of a legend."""
    line = shorten(printable(text), longest, placeholder=" ...") or printable(text)[:longest]
    return f" {line}" if line.startswith("_") else line


def tinted(colour: str, share: float) -> tuple[float, float, float, float]:
    """Return the colour of a cell of a heat map: clear at 0, and never too dark to write on."""
    from matplotlib.colors import to_rgba

    return to_rgba(colour, 0.04 + 0.62 * min(max(share, 0.0), 1.0))


def cells(axes: "Axes", grid: Sequence[Sequence[float | None]], colour: str) -> None:
    """Draw shares from 0 to 1 as a heat map, the first row on top; what is unknown stays empty.

    Cells of one shade are one path: hundreds of clients must not make a page heavy.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    shades: dict[int, list[Path]] = {}
    gap = 0.03 if len(grid) <= 40 else 0.0
    for row, line in enumerate(grid):
        for column, share in enumerate(line):
            if share:
                x, y, side = column - 0.5 + gap, row - 0.5 + gap, 1 - 2 * gap
                corners = [(x, y), (x + side, y), (x + side, y + side), (x, y + side), (x, y)]
                shades.setdefault(math.ceil(share * SHADES), []).append(Path(corners, closed=True))
    for shade, paths in sorted(shades.items()):
        look = {"facecolor": tinted(colour, shade / SHADES), "linewidth": 0}
        axes.add_patch(PathPatch(Path.make_compound_path(*paths), **look))
    axes.set_xlim(-0.5, max(map(len, grid), default=1) - 0.5)
    axes.set_ylim(len(grid) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)


def named(axis: Any, names: Sequence[str], width: int = 18, lines: int = 2) -> None:
    """Name the places 0, 1, ... of an axis, in so many lines of so many signs at most."""
    axis.set_ticks(range(len(names)), [fill(_short(name, lines * width), width) for name in names])
    for label in axis.get_ticklabels():
        label.set(color=INK, fontsize=SMALL, parse_math=False)


Draw = Callable[[Study], "Figure | None"]
