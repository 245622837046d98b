"""Figures of the coverage and the size of prediction sets."""

from typing import TYPE_CHECKING, Any

from common.conformal.prediction_sets import SCORES
from common.runs.conformal_results import ConformalResults
from common.types import ClientId
from deploy.report.figures.canvas import accuracy_axis, canvas
from deploy.report.figures.client_accuracy import by_rank, draw_ranks
from deploy.report.figures.legend import curve_entries, legend, legend_entry
from deploy.report.figures.style import (
    INK,
    MUTED,
    PAPER,
    coloured_series,
)
from deploy.report.run_groups import Study
from deploy.report.set_coverage import chosen, conformal_by_seed, curve_of, first_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def coverage(study: Study, score: str) -> "Figure | None":
    """Draw coverage against the mean size of the sets, with the top-1 accuracy.

    Args:
        study: the study. Values are means over the seeds that have sets.
        score: a key of `common.conformal.prediction_sets.SCORES`.
    """
    results = [
        (each, list(conformal_by_seed(each.family).values())) for each in coloured_series(study)
    ]
    shown = [(each, sets) for each, sets in results if curve_of(sets, score)]
    if not shown:
        return None
    figure, (axes,) = canvas("labels in a set, mean", f"coverage ({score})")
    lowest = 1.0
    for each, sets in shown:
        levels = curve_of(sets, score)
        sizes = [one.size.mean for one in levels]
        heights = [one.coverage.mean for one in levels]
        axes.plot(sizes, heights, color=each.style.colour, linestyle=each.style.line, linewidth=2)
        at, alone = chosen(sets, score), first_choice(sets)
        if at:
            axes.plot(2 * [at.size.mean], [at.coverage.low, at.coverage.high],
                      color=each.style.colour, linewidth=5, alpha=0.3)  # fmt: skip
            axes.plot(at.size.mean, at.coverage.mean, marker="o", markersize=7, markeredgewidth=2,
                      markerfacecolor=PAPER, color=each.style.colour, zorder=4)  # fmt: skip
        if alone:
            axes.plot(1, alone.mean, marker="D", markersize=6, color=each.style.colour,
                      markeredgecolor=PAPER, clip_on=False, zorder=5)  # fmt: skip
        lowest = min([lowest, alone.mean if alone else 1, *heights])
    promised = 1 - shown[0][1][0].miscoverage
    axes.axhline(promised, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    accuracy_axis(axes, lowest, 1)
    marks = {"linestyle": "none", "marker": "D", "markersize": 6}
    promise = {"linestyle": "none", "marker": "o", "markersize": 7, "markerfacecolor": "none"}
    legend(figure, [
        *curve_entries([each for each, _ in shown]),
        legend_entry("top-1 accuracy", INK, **marks),
        legend_entry(f"promised {100 * promised:.0f} %", INK, **promise),
    ])  # fmt: skip
    return figure


def coverage_of_clients(study: Study) -> "Figure | None":
    """Draw the coverage of every client, from lowest to highest, with the promised coverage."""
    score = next(iter(SCORES))
    results = [
        (each, list(conformal_by_seed(each.family).values())) for each in coloured_series(study)
    ]
    shown = [(each, by_rank([_by_client(one, score) for one in sets])) for each, sets in results]
    shown = [(each, heights) for each, heights in shown if heights]
    if not shown:
        return None
    figure, (axes,) = canvas("clients, from lowest to highest", f"coverage ({score})")
    draw_ranks(axes, shown)
    promised = next(1 - sets[0].miscoverage for _, sets in results if sets)
    dotted: Any = {"linewidth": 1.2, "linestyle": (0, (1, 1.5))}
    axes.axhline(promised, color=INK, **dotted)
    accuracy_axis(axes, min(heights[0] for _, heights in shown), 1)
    promise = legend_entry(f"promised: {100 * promised:.0f} %", INK, **dotted)
    legend(figure, [*curve_entries([each for each, _ in shown]), promise])
    return figure


def _by_client(sets: ConformalResults, score: str) -> dict[ClientId, float]:
    """Return the coverage of each client that has one."""
    rows = sets.clients.get(score, {})
    return {client: row.coverage for client, row in rows.items() if row.coverage is not None}
