"""Figures of the methods against the reference: rounds to target, and final difference."""

from typing import TYPE_CHECKING

from deploy.report.figures.canvas import (
    SIZE,
    canvas,
    set_heading,
    set_names,
    whole_numbers,
    write_text,
)
from deploy.report.figures.legend import legend, legend_entry
from deploy.report.figures.style import (
    INK,
    LINE,
    MEASURES,
    MUTED,
    series_of,
)
from deploy.report.metrics import differences, goal, name_of, reached, reference
from deploy.report.run_groups import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 12  # families in one figure


def target(study: Study) -> "Figure | None":
    """Draw the round in which each family first reaches the target, as bars."""
    base = reference(study)
    styles = {id(each.family): each.style for each in series_of(study)}
    rows = reached(study)
    if not base or len(rows) < 2:
        return None
    rows.sort(key=lambda row: styles[id(row[0])].rank)
    rows = rows[:MOST]
    rows.sort(key=lambda row: (row[1].round is None, row[1].round or 0, row[0] is base))
    figure, (axes,) = canvas("round", height=max(SIZE[1], 0.9 + 0.28 * len(rows)))
    total = rows[0][1].total
    for place, (family, value) in enumerate(rows):
        style = styles[id(family)]
        axes.barh(place, value.round or total, height=0.58, linewidth=0,
                  color=style.colour if value.round else LINE,
                  alpha=0.3 if style.faint else 0.85)  # fmt: skip
        label = f"{value.round}  ({value.speedup_text})" if value.round else "not reached"
        write_text(axes, (value.round or 0) + total * 0.015, place, label, va="center", color=INK)
    set_names(axes.yaxis, [name_of(family) for family, _ in rows], 24)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlim(0, total * 1.2)
    whole_numbers(axes.xaxis)
    set_heading(axes, f"rounds to {goal(study)}")
    return figure


def difference(study: Study) -> "Figure | None":
    """Draw the difference of each family to the reference, with its bootstrap interval."""
    from matplotlib.ticker import FuncFormatter

    base = reference(study)
    ranks = {id(each.family): each.style.rank for each in series_of(study)}
    by_metric = {name: differences(study, name) for name, *_ in MEASURES}
    families = sorted((family for family, _ in by_metric["mean"]), key=lambda one: ranks[id(one)])
    families = families[:MOST]
    if not base or not families:
        return None
    figure, (axes,) = canvas(height=max(SIZE[1], 0.95 + 0.36 * len(families)))
    for (name, _, colour, marker, _), shift in zip(MEASURES, (-0.16, 0.16), strict=True):
        values = {id(family): value for family, value in by_metric[name]}
        for place, family in enumerate(families):
            value = values[id(family)]
            axes.hlines(place + shift, value.low, value.high, color=colour, linewidth=2.4,
                        alpha=1 if value.is_clear else 0.4)  # fmt: skip
            axes.plot(value.value, place + shift, marker=marker, color=colour, markersize=7,
                      markerfacecolor=colour if value.is_clear else "none")  # fmt: skip
    axes.axvline(0, color=INK, linewidth=1)
    set_names(axes.yaxis, [name_of(family) for family in families], 24)
    axes.set_ylim(len(families) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:+.0f}" if value else "0")
    )
    axes.set_xlabel("percentage points", color=MUTED)
    set_heading(axes, f"above {name_of(base)}")
    legend(figure, [legend_entry(text, colour, marker=marker, markersize=7)
                    for _, _, colour, marker, text in MEASURES])  # fmt: skip
    return figure
