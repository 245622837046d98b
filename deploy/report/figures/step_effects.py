"""Figures of the history of a method, and of the cosine of its step with the updates."""

from typing import TYPE_CHECKING, Any

from deploy.report.diagnostic_values import of_rounds, over_rounds, step_cosines
from deploy.report.figures.canvas import (
    SIZE,
    SMALL,
    canvas,
    whole_numbers,
)
from deploy.report.figures.legend import legend, legend_entry
from deploy.report.figures.style import (
    BAD,
    GOOD,
    INK,
    MUTED,
    WARN,
    coloured_series,
)
from deploy.report.metrics import changed
from deploy.report.run_groups import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6  # methods in one figure


def memory(study: Study) -> "Figure | None":
    """Draw the number of clients in the history over the rounds, and of active constraints.

    Shows the first method that reports both numbers, with the fewest changed settings.
    """
    series = sorted(coloured_series(study), key=lambda each: len(changed(each.family)))
    for each in series:
        held = of_rounds(each.family, "rows")
        active = of_rounds(each.family, "active")
        if held and active:
            break
    else:
        return None
    figure, (axes,) = canvas("round", f"clients in the step of {each.name}")
    expected = over_rounds(each.family, "occupancy", "expected")
    rounds = [number for number, _ in active]
    axes.fill_between(rounds, 0, [v.mean for _, v in active], color=BAD, alpha=0.28, linewidth=0)
    axes.plot(rounds, [v.mean for _, v in active], color=BAD, linewidth=1.6)
    axes.plot([n for n, _ in held], [v.mean for _, v in held], color=GOOD, linewidth=2.2)
    if expected:
        axes.plot([n for n, _ in expected], [v.mean for _, v in expected], color=INK,
                  linewidth=1.4, linestyle=(0, (3, 2)))  # fmt: skip
    fallen = [
        record.round
        for run in each.family.runs
        for record in run.records
        if record.method.get("feasible") is False
    ]
    if fallen:
        axes.plot(fallen, [0] * len(fallen), color=WARN, marker="|", markersize=9, linestyle="none",
              clip_on=False, zorder=5)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    whole_numbers(axes.xaxis)
    whole_numbers(axes.yaxis)
    entries = [
        legend_entry("in the history", GOOD, linewidth=2.2),
        legend_entry("active constraints", BAD),
    ]
    entries += [legend_entry("expected", INK, linestyle=(0, (3, 2)))] if expected else []
    marks: dict[str, Any] = {"marker": "|", "linestyle": "none", "markersize": 9}
    entries += [legend_entry("infeasible: FedAvg step", WARN, **marks)] if fallen else []
    legend(figure, entries)
    return figure


def cosines(study: Study) -> "Figure | None":
    """Draw the cosine of the step with each client's update over the diagnosed rounds."""
    cosines_by_series = [(each, step_cosines(each.family)) for each in coloured_series(study)]
    shown = [(each, points) for each, points in cosines_by_series if points][:MOST]
    if not shown:
        return None
    columns = 1 if len(shown) <= 2 else 2
    rows = -(-len(shown) // columns)
    figure, axes = canvas(
        "round", rows=rows, columns=columns, height=max(SIZE[1], 0.7 + 1.3 * rows), sharex=True,
        sharey=True,
    )  # fmt: skip
    for one in axes[len(shown) :]:
        one.set_visible(False)
    for one, (each, points) in zip(axes, shown, strict=False):
        for colour, kept in ((GOOD, [p for p in points if p[1] >= 0]),
                             (BAD, [p for p in points if p[1] < 0])):  # fmt: skip
            one.plot([n for n, _ in kept], [c for _, c in kept], color=colour, marker="o",
                     linestyle="none", markersize=4.2, alpha=0.5, markeredgewidth=0)  # fmt: skip
        one.axhline(0, color=MUTED, linewidth=1)
        against = sum(cosine < 0 for _, cosine in points)
        title = f"{each.name}: {100 * against / len(points):.0f} % against"
        one.set_title(title, loc="left", fontsize=SMALL, color=INK, pad=4, parse_math=False)
        one.set_xlim(left=0)
    lowest = min(cosine for _, points in shown for _, cosine in points)
    highest = max(cosine for _, points in shown for _, cosine in points)
    room = 0.08 * (highest - min(lowest, 0)) or 0.1
    axes[0].set_ylim(min(lowest, 0) - room, highest + room)
    whole_numbers(axes[-1].xaxis)
    marks: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 6}
    legend(
        figure,
        [
            legend_entry("with the update", GOOD, **marks),
            legend_entry("against the update", BAD, **marks),
        ],
    )
    return figure
