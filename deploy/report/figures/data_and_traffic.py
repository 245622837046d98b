"""Who holds which classes, and what travels."""

from typing import TYPE_CHECKING

from deploy.report.columns import MEGABYTES
from deploy.report.diagnostic_values import partition_of
from deploy.report.figures.style import (
    FAINT,
    GOOD,
    LINE,
    MUTED,
    PAPER,
    SIZE,
    SMALL,
    canvas,
    cells,
    headed,
    legend,
    named,
    percent,
    plain_axes,
    points_of,
    series_of,
)
from deploy.report.metrics import final, mean
from deploy.report.run_groups import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED_CLIENTS, NAMED_CLASSES = 24, 14  # from more on they are not told by name
ALIKE = 0.01  # share by which traffic must differ to be shown


def partition(study: Study) -> "Figure | None":
    """Draw what share of its training samples each client has of each class."""
    found = partition_of(study)
    if found is None or not found.clients:
        return None
    clients = sorted(found.clients, key=lambda name: _by_main_class(found.clients[name]))
    counts = [found.clients[name] for name in clients]
    totals = [sum(row) for row in counts]
    uneven = max(totals) > 1.05 * max(min(totals), 1)
    height = max(SIZE[1], 0.9 + 0.19 * min(len(clients), NAMED_CLIENTS))
    figure, axes = canvas(
        columns=2 if uneven else 1, height=height, width_ratios=[4, 1] if uneven else [1]
    )
    shares = [[n / total if total else None for n in row] for row, total in
              zip(counts, totals, strict=True)]  # fmt: skip
    cells(axes[0], shares, GOOD)
    many = len(clients) > NAMED_CLIENTS
    named(axes[0].yaxis, [] if many else clients, 20, lines=1)
    named(axes[0].xaxis, found.classes if len(found.classes) <= NAMED_CLASSES else [], 8, lines=1)
    headed(axes[0], f"{len(clients)} clients, by their main class" if many else "client")
    axes[0].set_xlabel(f"class, of {len(found.classes)}", fontsize=SMALL, color=MUTED)
    if uneven:
        side = axes[1]
        plain_axes(side)
        side.barh(range(len(clients)), totals, height=0.8, color=MUTED, alpha=0.5, linewidth=0)
        side.set_ylim(axes[0].get_ylim())
        side.set_yticks([])
        side.grid(visible=False)
        side.set_xticks([0, max(totals)])
        headed(side, "samples")
    return figure


def _by_main_class(row: list[int]) -> tuple[int, int]:
    largest = max(row, default=0)
    return (row.index(largest) if row else 0, -largest)


def traffic(study: Study) -> "Figure | None":
    """Draw accuracy against what travels to and from a client in a round."""
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
    legend(figure, points_of([each for each, _, _ in known]))
    return figure
