"""Figures of accuracy over the rounds."""

from typing import TYPE_CHECKING, Any

from deploy.report.figures.canvas import (
    accuracy_axis,
    canvas,
    set_heading,
    whole_numbers,
)
from deploy.report.figures.legend import curve_entries, legend, legend_entry
from deploy.report.figures.style import (
    DASHES,
    INK,
    MUTED,
    PAPER,
    Series,
    series_of,
)
from deploy.report.metrics import OfFairness, curve, mean, reached, reference, worst10
from deploy.report.run_groups import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOGETHER = 3  # families: with more, the worst 10 % get a figure of their own


def accuracy(study: Study) -> "Figure | None":
    """Draw mean accuracy over the rounds. With few families, draw the worst 10 % as well."""
    series = series_of(study)
    if not series:
        return None
    figure, (axes,) = canvas("round", "accuracy, mean of clients")
    together = len(series) <= TOGETHER
    if together:
        set_heading(axes, "accuracy on the clients' test data")
        for each in series:
            _draw_curve(axes, each, worst10, DASHES)
    for each in series:
        _draw_curve(axes, each, mean, each.style.line)
    _mark_target(axes, study, series)
    _over_rounds(axes)
    kinds = [legend_entry("worst 10 %", INK, linewidth=1.6, linestyle=DASHES)] if together else []
    legend(figure, [*curve_entries(series), *kinds])
    return figure


def worst(study: Study) -> "Figure | None":
    """Draw the worst 10 % over the rounds, unless `accuracy` shows it."""
    series = series_of(study)
    if len(series) <= TOGETHER:
        return None
    figure, (axes,) = canvas("round", "accuracy, worst 10 % of clients")
    for each in series:
        _draw_curve(axes, each, worst10, each.style.line)
    _over_rounds(axes)
    legend(figure, curve_entries(series))
    return figure


def _over_rounds(axes: "Axes") -> None:
    axes.set_xlim(left=0)
    whole_numbers(axes.xaxis)
    accuracy_axis(axes, 0, axes.dataLim.y1)


def _draw_curve(axes: "Axes", series: Series, get: OfFairness, line: Any) -> None:
    points = curve(series.family, get)
    rounds = [number for number, _ in points]
    heights = [value.mean for _, value in points]
    look: dict[str, Any] = {"color": series.style.colour, "linestyle": line, "zorder": 3}
    if series.style.faint:
        axes.plot(rounds, heights, linewidth=1, alpha=0.35, color=MUTED)
        return
    if any(value.seeds > 1 for _, value in points):
        low, high = ([getattr(value, end) for _, value in points] for end in ("low", "high"))
        axes.fill_between(rounds, low, high, color=series.style.colour, alpha=0.13, linewidth=0)
    axes.plot(rounds, heights, linewidth=2.2 if get is mean else 1.7, **look)
    end = "full" if get is mean else "none"
    axes.plot(rounds[-1:], heights[-1:], marker=series.style.marker, fillstyle=end, **look)


def _mark_target(axes: "Axes", study: Study, series: list[Series]) -> None:
    """Mark where the curves first reach the target, or the final accuracy of the reference."""
    base = reference(study)
    reached_rounds = reached(study)
    if not base or len(reached_rounds) < 2:
        return
    target, total = reached_rounds[0][1].target, reached_rounds[0][1].total
    axes.hlines(target, 0, total, color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=2)
    where = {id(family): value for family, value in reached_rounds}
    for each in series:
        value = where.get(id(each.family))
        if value and value.round and each.family is not base and not each.style.faint:
            height = dict(curve(each.family))[value.round].mean
            axes.plot(value.round, height, marker="o", markersize=7, markeredgewidth=2,
                      markerfacecolor=PAPER, color=each.style.colour, zorder=5)  # fmt: skip
            axes.vlines(value.round, 0, target, color=each.style.colour, linewidth=1, alpha=0.5)
