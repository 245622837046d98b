"""Figures of the accuracy of each client, and of mean accuracy against fairness."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from common.fairness import worst_count
from deploy.report.figures.canvas import (
    accuracy_axis,
    canvas,
    percent,
    write_text,
)
from deploy.report.figures.legend import curve_entries, legend, point_entries
from deploy.report.figures.style import (
    FAINT,
    LINE,
    PAPER,
    Series,
    coloured_series,
    series_of,
)
from deploy.report.metrics import (
    OfFairness,
    client_accuracies,
    evaluations,
    final,
    mean,
    spread,
    worst10,
)
from deploy.report.run_groups import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def distribution(study: Study) -> "Figure | None":
    """Draw the final accuracy of every client in ascending order, the mean over seeds by rank."""
    shown = [
        (each, by_rank(list(client_accuracies(each.family).values())))
        for each in coloured_series(study)
    ]
    shown = [(each, heights) for each, heights in shown if heights]
    if not shown:
        return None
    figure, (axes,) = canvas("clients, from lowest to highest", "accuracy of the client")
    draw_ranks(axes, shown)
    ends = [height for _, heights in shown for height in heights]
    accuracy_axis(axes, min(ends), max(ends))
    legend(figure, curve_entries([each for each, _ in shown]))
    return figure


def draw_ranks(axes: "Axes", shown: Sequence[tuple[Series, Sequence[float]]]) -> None:
    """Draw a step for each client, from lowest to highest, with the worst 10 % shaded.

    Args:
        axes: the x axis is the share of the clients.
        shown: families, and the values of their clients in ascending order.
    """
    from matplotlib.ticker import MultipleLocator

    worst = max(worst_count(len(heights)) / len(heights) for _, heights in shown)
    if worst < 1:
        axes.axvspan(0, worst, color=LINE, alpha=0.55, linewidth=0)
        look: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "va": "bottom"}
        write_text(axes, worst + 0.012, 0.02, "worst 10 %", **look)
    for each, heights in shown:
        edges = [place / len(heights) for place in range(len(heights) + 1)]
        stairs = axes.stairs(heights, edges, baseline=None)
        stairs.set(color=each.style.colour, linestyle=each.style.line, linewidth=2.2)
    percent(axes.xaxis)
    axes.xaxis.set_major_locator(MultipleLocator(0.25))
    axes.set_xlim(0, 1)


def by_rank(values: Sequence[Mapping[str, float]]) -> list[float]:
    """Return the mean over seeds of the k-th lowest value. Seeds may have different clients."""
    ranked = [sorted(each.values()) for each in values if each]
    places = max(map(len, ranked), default=0)
    return [fmean(each[place * len(each) // places] for each in ranked) for place in range(places)]


def against_spread(study: Study) -> "Figure | None":
    """Draw mean accuracy against its spread over the clients."""
    return _frontier(study, spread, "spread over the clients (standard deviation)", "<- more even")


def against_worst(study: Study) -> "Figure | None":
    """Draw mean accuracy against the worst 10 %."""
    return _frontier(study, worst10, "accuracy, worst 10 % of clients", "better ->")


def _frontier(study: Study, get: OfFairness, across: str, better: str) -> "Figure | None":
    series = series_of(study)
    if len(series) < 2:
        return None
    figure, (axes,) = canvas(across, "accuracy, mean of clients")
    for each in series:
        _draw_point(axes, each, get)
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    percent(axes.xaxis)
    percent(axes.yaxis)
    axes.margins(0.09)
    legend(figure, point_entries(series))
    return figure


def _draw_point(axes: Any, series: Series, get: OfFairness) -> None:
    ends = [each.fairness for each in evaluations(series.family).values() if each.fairness]
    x, y = final(series.family, get), final(series.family, mean)
    if not x or not y:
        return
    look: dict[str, Any] = {"color": series.style.colour, "linestyle": "none"}
    if series.style is FAINT:
        axes.plot(x.mean, y.mean, marker="o", markersize=4, alpha=0.4, **look)
        return
    if len(ends) > 1:
        axes.plot([get(end) for end in ends], [end.mean for end in ends], marker="o",
                  markersize=3.4, alpha=0.55, markeredgewidth=0, **look)  # fmt: skip
    axes.plot(x.mean, y.mean, marker=series.style.marker, markersize=9.5,
              markeredgecolor=PAPER, markeredgewidth=1.2, zorder=4, **look)  # fmt: skip
