"""Figures of the classes of each client, and of the traffic."""

from typing import TYPE_CHECKING

from deploy.report.columns import MEGABYTES
from deploy.report.diagnostic_values import partition_of
from deploy.report.figures.canvas import (
    SIZE,
    SMALL,
    canvas,
    clear_axes,
    percent,
    set_heading,
    set_names,
)
from deploy.report.figures.heat_map import draw_cells
from deploy.report.figures.legend import legend, point_entries
from deploy.report.figures.style import (
    FAINT,
    GOOD,
    LINE,
    MUTED,
    PAPER,
    series_of,
)
from deploy.report.metrics import final, mean
from deploy.report.run_groups import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED_CLIENTS, NAMED_CLASSES = 24, 14  # with more, no names are shown
ALIKE = 0.01  # smallest relative difference in traffic that is drawn


def partition(study: Study) -> "Figure | None":
    """Draw the share of each class in the training samples of each client."""
    class_counts = partition_of(study)
    if class_counts is None or not class_counts.clients:
        return None
    clients = sorted(
        class_counts.clients, key=lambda name: _by_main_class(class_counts.clients[name])
    )
    counts = [class_counts.clients[name] for name in clients]
    totals = [sum(row) for row in counts]
    uneven = max(totals) > 1.05 * max(min(totals), 1)
    height = max(SIZE[1], 0.9 + 0.19 * min(len(clients), NAMED_CLIENTS))
    figure, axes = canvas(
        columns=2 if uneven else 1, height=height, width_ratios=[4, 1] if uneven else [1]
    )
    shares = [[n / total if total else None for n in row] for row, total in
              zip(counts, totals, strict=True)]  # fmt: skip
    draw_cells(axes[0], shares, GOOD)
    many = len(clients) > NAMED_CLIENTS
    set_names(axes[0].yaxis, [] if many else clients, 20, lines=1)
    set_names(
        axes[0].xaxis,
        class_counts.classes if len(class_counts.classes) <= NAMED_CLASSES else [],
        8,
        lines=1,
    )
    set_heading(axes[0], f"{len(clients)} clients, by their main class" if many else "client")
    axes[0].set_xlabel(f"class, of {len(class_counts.classes)}", fontsize=SMALL, color=MUTED)
    if uneven:
        side = axes[1]
        clear_axes(side)
        side.barh(range(len(clients)), totals, height=0.8, color=MUTED, alpha=0.5, linewidth=0)
        side.set_ylim(axes[0].get_ylim())
        side.set_yticks([])
        side.grid(visible=False)
        side.set_xticks([0, max(totals)])
        set_heading(side, "samples")
    return figure


def _by_main_class(row: list[int]) -> tuple[int, int]:
    largest = max(row, default=0)
    return (row.index(largest) if row else 0, -largest)


def traffic(study: Study) -> "Figure | None":
    """Draw accuracy against megabytes per client and round."""
    points = [
        (each, MEGABYTES.of_family(each.family), final(each.family, mean))
        for each in series_of(study)
        if each.style is not FAINT and not each.family.personal
    ]
    known = [(each, sent.mean, end.mean) for each, sent, end in points if sent and end]
    sizes = [sent for _, sent, _ in known]
    if len(known) < 2 or max(sizes) <= (1 + ALIKE) * min(sizes):
        return None
    figure, (axes,) = canvas("MB per client and round, down and up", "accuracy, mean of clients")
    for each, sent, end in known:
        axes.plot(sent, end, marker=each.style.marker, color=each.style.colour, markersize=9.5,
                  linestyle="none", markeredgecolor=PAPER, markeredgewidth=1.2)  # fmt: skip
    axes.set_xlim(0, max(sizes) * 1.08)
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.margins(y=0.12)
    percent(axes.yaxis)
    legend(figure, point_entries([each for each, _, _ in known]))
    return figure
