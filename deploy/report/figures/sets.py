"""Prediction sets: what a promise costs in labels, and for whom it is kept."""

from typing import TYPE_CHECKING, Any

from common.conformal import SCORES
from common.metrics import worst_count
from deploy.report.figures.style import (
    INK,
    LINE,
    MUTED,
    PAPER,
    accuracy_axis,
    canvas,
    key,
    keys_of,
    legend,
    percent,
    told_apart,
)
from deploy.report.inside import conformal_of
from deploy.report.studies import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def coverage(study: Study, score: str) -> "Figure | None":
    """Draw coverage against the mean size of the sets, with the model's first choice beside.

    Args:
        study: whose families are shown; of each its first seed that has sets.
        score: a key of `common.conformal.SCORES`.
    """
    found = [(each, conformal_of(each.family)) for each in told_apart(study)]
    shown = [(each, sets) for each, sets in found if sets and sets.scores.get(score)]
    if not shown:
        return None
    figure, (axes,) = canvas("labels in a set, mean", f"sets that hold the true label ({score})")
    lowest = 1.0
    for each, sets in shown:
        levels = [one for one in sets.scores[score] if one.coverage is not None]
        sizes = [one.mean_size or 0 for one in levels]
        heights = [one.coverage or 0 for one in levels]
        axes.plot(sizes, heights, color=each.style.colour, linestyle=each.style.line, linewidth=2)
        at = sets.chosen(score)
        if at.coverage is not None and at.mean_size is not None:
            axes.plot(at.mean_size, at.coverage, marker="o", markersize=7, markeredgewidth=2,
                      markerfacecolor=PAPER, color=each.style.colour, zorder=4)  # fmt: skip
        if sets.accuracy is not None:
            axes.plot(1, sets.accuracy, marker="D", markersize=6, color=each.style.colour,
                      markeredgecolor=PAPER, clip_on=False, zorder=5)  # fmt: skip
        lowest = min([lowest, sets.accuracy or 1, *heights])
    promised = 1 - shown[0][1].miscoverage
    axes.axhline(promised, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    accuracy_axis(axes, lowest, 1)
    marks = {"linestyle": "none", "marker": "D", "markersize": 6}
    promise = {"linestyle": "none", "marker": "o", "markersize": 7, "markerfacecolor": "none"}
    legend(figure, [
        *keys_of([each for each, _ in shown]),
        key("first choice alone", INK, **marks),
        key(f"promised {100 * promised:.0f} %", INK, **promise),
    ])  # fmt: skip
    return figure


def coverage_of_clients(study: Study) -> "Figure | None":
    """Draw the coverage of every client, from worst to best, beside what was promised."""
    score = next(iter(SCORES))
    found = [(each, conformal_of(each.family)) for each in told_apart(study)]
    shown = []
    for each, sets in found:
        rows = sets.clients.get(score, {}).values() if sets else ()
        heights = sorted(row.coverage for row in rows if row.coverage is not None)
        if sets and heights:
            shown.append((each, heights, 1 - sets.miscoverage))
    if not shown:
        return None
    figure, (axes,) = canvas(
        "clients, from worst to best", f"sets that hold the true label ({score})"
    )
    worst = max(worst_count(len(heights)) / len(heights) for _, heights, _ in shown)
    if worst < 1:
        axes.axvspan(0, worst, color=LINE, alpha=0.55, linewidth=0)
    for each, heights, _ in shown:
        edges = [place / len(heights) for place in range(len(heights) + 1)]
        stairs = axes.stairs(heights, edges, baseline=None)
        stairs.set(color=each.style.colour, linestyle=each.style.line, linewidth=2.2)
    promised = shown[0][2]
    dotted: Any = {"linewidth": 1.2, "linestyle": (0, (1, 1.5))}
    axes.axhline(promised, color=INK, **dotted)
    percent(axes.xaxis)
    axes.set_xlim(0, 1)
    accuracy_axis(axes, min(heights[0] for _, heights, _ in shown), 1)
    told = key(f"promised: {100 * promised:.0f} %", INK, **dotted)
    legend(figure, [*keys_of([each for each, _, _ in shown]), told])
    return figure
