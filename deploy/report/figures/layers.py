"""Figures of the drift and the similarity of the clients by layer."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from common.statistics import SeedSummary
from deploy.report.diagnostic_values import (
    at,
    last_diagnosed,
    mean_over_rounds,
    number_in,
    over_rounds,
    table_in,
)
from deploy.report.figures.canvas import (
    SIZE,
    SMALL,
    canvas,
    set_names,
    whole_numbers,
    write_text,
)
from deploy.report.figures.heat_map import cell_colour, draw_cells
from deploy.report.figures.legend import curve_entries, legend, legend_entry
from deploy.report.figures.style import (
    GOOD,
    INK,
    LINE,
    MUTED,
    PAPER,
    Series,
    coloured_series,
)
from deploy.report.run_groups import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_MATRICES = 6
MOST_LAYERS = 24
LONGEST_LAYER, LONGEST_HEAD = 26, 10  # characters


def drift_by_layer(study: Study) -> "Figure | None":
    """Draw the mean drift diversity of each layer over the diagnosed rounds."""
    shown = [(each, _drift(each)) for each in coloured_series(study)]
    shown = [(each, layers) for each, layers in shown if layers]
    if not shown:
        return None
    names = list(dict.fromkeys(name for _, layers in shown for name in layers))[:MOST_LAYERS]
    height = max(SIZE[1], 1.2 + 0.24 * len(names))
    figure, (axes,) = canvas("drift diversity of the layer", height=height)
    axes.set_xscale("log")
    for each, layers in shown:
        known = [(layers[n], place) for place, n in enumerate(names) if n in layers]
        xs, ys = [value.mean for value, _ in known], [place for _, place in known]
        axes.plot(xs, ys, color=each.style.colour, marker=each.style.marker, linewidth=1.8,
                  markersize=7, markeredgecolor=PAPER, linestyle=each.style.line)  # fmt: skip
        lows, highs = [v.low for v, _ in known], [v.high for v, _ in known]
        axes.hlines(ys, lows, highs, color=each.style.colour, linewidth=5, alpha=0.2)
    _mark_bounds(axes, study)
    axes.set_ylim(len(names) - 0.5, -0.75)
    set_names(axes.yaxis, names, LONGEST_LAYER, lines=1)
    axes.grid(visible=False)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    _plain_log(axes)
    legend(figure, curve_entries([each for each, _ in shown]))
    return figure


def _drift(series: Series) -> dict[str, SeedSummary]:
    last = last_diagnosed(series.family, "drift")
    names = dict.fromkeys(
        name for diagnostics in last for name in table_in(diagnostics, "drift", "layers")
    )
    means = {name: mean_over_rounds(series.family, "drift", "layers", name) for name in names}
    return {name: value for name, value in means.items() if value and value.low > 0}


def _mark_bounds(axes: "Axes", study: Study) -> None:
    sizes = {
        len(diagnostics["clients"])
        for each in coloured_series(study)
        for diagnostics in last_diagnosed(each.family, "drift")
        if diagnostics.get("clients") and isinstance(diagnostics["clients"], list)
    }
    marks = [(1.0, "orthogonal")]
    marks += [(1 / size, f"all equal (1/{size})") for size in sizes if len(sizes) == 1]
    for value, text in marks:
        axes.axvline(value, color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        look: dict[str, Any] = {
            "transform": axes.get_xaxis_transform(),
            "va": "top",
            "ha": "center",
        }
        write_text(axes, value, 1.075, text, **look)


def _plain_log(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def drift_over_rounds(study: Study) -> "Figure | None":
    """Draw the drift diversity of all weights over the diagnosed rounds."""
    shown = [(each, over_rounds(each.family, "drift", "whole")) for each in coloured_series(study)]
    shown = [(each, points) for each, points in shown if len(points) > 1]
    if not shown:
        return None
    figure, (axes,) = canvas("round", "drift diversity of all weights")
    for each, points in shown:
        rounds = [number for number, _ in points]
        axes.fill_between(rounds, [v.low for _, v in points], [v.high for _, v in points],
                          color=each.style.colour, alpha=0.13, linewidth=0)  # fmt: skip
        axes.plot(rounds, [v.mean for _, v in points], color=each.style.colour,
                  linestyle=each.style.line, linewidth=2.2)  # fmt: skip
    axes.axhline(1, color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    whole_numbers(axes.xaxis)
    legend(figure, curve_entries([each for each, _ in shown]))
    return figure


def similarity(study: Study) -> "Figure | None":
    """Draw the mean CKA over pairs of clients, layers by methods, as a heat map."""
    columns = [(each, _similarity(each)) for each in coloured_series(study)]
    columns = [(each, layers) for each, layers in columns if layers]
    names = list(dict.fromkeys(name for _, layers in columns for name in layers))[:MOST_LAYERS]
    grid = [[layers.get(name) for _, layers in columns] for name in names]
    low = _floor(grid)
    if low is None:
        return None
    figure, (axes,) = canvas(height=max(SIZE[1], 0.9 + 0.3 * len(names)))
    draw_cells(axes, _stretched(grid, low), GOOD)
    for row, line in enumerate(grid):
        for column, value in enumerate(line):
            text = "-" if value is None else f"{value:.3f}"
            write_text(axes, column, row, text, ha="center", va="center", color=INK)
    set_names(axes.yaxis, names, LONGEST_LAYER, lines=1)
    axes.xaxis.tick_top()
    heads = [each.name for each, _ in columns]
    if max(map(len, heads)) <= LONGEST_HEAD:
        set_names(axes.xaxis, heads, LONGEST_HEAD, lines=1)
        return figure
    set_names(axes.xaxis, ["●"] * len(columns))
    for label, (each, _) in zip(axes.get_xticklabels(), columns, strict=True):
        label.set_color(each.style.colour)
    legend(figure, curve_entries([each for each, _ in columns]))
    return figure


def _similarity(series: Series) -> dict[str, float]:
    """Return each layer's mean CKA over pairs, diagnosed rounds and seeds."""
    last = last_diagnosed(series.family, "cka")
    names = [name for diagnostics in last for name in table_in(diagnostics, "cka", "layers")]
    means = {}
    for name in dict.fromkeys(names):
        points = over_rounds(series.family, "cka", "layers", name, "mean")
        if points:
            means[name] = fmean(value.mean for _, value in points)
    return means


def _floor(grid: Sequence[Sequence[float | None]]) -> float | None:
    """Return the lowest value rounded down to 0.05, where the shades begin. None without values."""
    known = [value for line in grid for value in line if value is not None]
    return min(math.floor(min(known) * 20) / 20, 0.95) if known else None


def _stretched(grid: Sequence[Sequence[float | None]], low: float) -> list[list[float | None]]:
    return [
        [None if value is None else max((value - low) / (1 - low), 1e-9) for value in line]
        for line in grid
    ]


def matrices(study: Study) -> "Figure | None":
    """Draw the CKA of every pair of clients in the last layer, one matrix per method."""
    matrices = [(each, _last_matrix(each)) for each in coloured_series(study)]
    shown = [(each, grid) for each, grid in matrices if grid][:MOST_MATRICES]
    low = _floor([line for _, grid in shown for line in grid])
    if low is None:
        return None
    columns = math.ceil(math.sqrt(len(shown)))
    rows = math.ceil(len(shown) / columns)
    figure, axes = canvas(rows=rows, columns=columns)
    for one, (each, grid) in zip(axes, shown, strict=False):
        draw_cells(one, _stretched(grid, low), GOOD)
        one.set_aspect("equal")
        one.set_title(each.name, fontsize=SMALL, color=each.style.colour, parse_math=False)
        set_names(one.yaxis, [])
        set_names(one.xaxis, [])
    for one in axes[len(shown) :]:
        one.set_visible(False)
    marks: dict[str, Any] = {"marker": "s", "linestyle": "none", "markersize": 9}
    ends = ((low, f"{low:g}"), (1.0, "1: equal"))
    legend(figure, [legend_entry(text, cell_colour(GOOD, (value - low) / (1 - low)), **marks)
                    for value, text in ends])  # fmt: skip
    return figure


def _last_matrix(series: Series) -> list[list[float | None]]:
    """Return the CKA matrix of the last layer in the last diagnosed round of the first seed."""
    for diagnostics in last_diagnosed(series.family, "cka")[:1]:
        for layer in list(table_in(diagnostics, "cka", "layers").values())[-1:]:
            return _square(at(layer, "matrix"))
    return []


def _square(matrix: object) -> list[list[float | None]]:
    """Return the rows of a square matrix, [] for anything else."""
    if not isinstance(matrix, list):
        return []
    rows = [row for row in matrix if isinstance(row, list)]
    is_square = {len(matrix)} == {len(rows), *map(len, rows)}
    return [[number_in(value) for value in row] for row in rows] if is_square else []
