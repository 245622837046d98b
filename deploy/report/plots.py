"""The plots of one or several runs: accuracy over the rounds, and how evenly clients are served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from common.metrics import worst_count
from deploy.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too; their yellow is too pale here.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SMALL_TOP: Mapping[str, Any] = {"ha": "center", "va": "top", "fontsize": 9, "color": "0.35"}
MARKERS = ("o", "s", "^", "D")  # the next marker and line for each time round the colours
LINES = ("solid", "dashed", "dotted", "dashdot")
DASHES = (0, (4, 2))


def plot_runs(runs: Sequence[Run], out_dir: Path, data: str = "") -> list[Path]:
    """Draw the runs; a plot without anything to show is not written.

    Args:
        runs: one or several, each in its own colour.
        out_dir: made if needed; an older plot of the same name is replaced.
        data: the data set and its split in words, for the subtitle.

    Returns:
        The PNGs written: `accuracy.png` (mean and worst 10 % over the rounds) and `clients.png`
        (every client's accuracy at the last evaluation, from worst to best).
    """
    drawn = [(run, Style.number(index)) for index, run in enumerate(runs) if run.curve]
    if not drawn:
        return []
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in (("accuracy.png", _draw_rounds), ("clients.png", _draw_clients)):
        figure = draw(drawn, data)
        figure.savefig(out_dir / name, dpi=150)
        paths.append(out_dir / name)
    return paths


@dataclass(frozen=True)
class Style:
    """How one run is told from the others: a colour, then a marker and a line when they run out."""

    colour: str
    marker: str
    line: str

    @classmethod
    def number(cls, index: int) -> "Style":
        """Return the style of the run at this place."""
        turn, place = divmod(index, len(COLOURS))
        turn %= len(MARKERS)
        return cls(COLOURS[place], MARKERS[turn], LINES[turn])


def _canvas(title: str, data: str, across: str, up: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=24 if data else 10)
    look: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 10, "parse_math": False}
    axes.text(0, 1.03, shorten(data, 95, placeholder=" ..."), color="0.35", **look)
    axes.set_xlabel(across, fontsize=11)
    axes.set_ylabel(up, fontsize=11)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    return figure, axes


def _finish(figure: "Figure", axes: "Axes", highest: float) -> "Figure":
    """Start the accuracy axis at 0 and put the legend below, where it covers no data."""
    axes.set_ylim(0, min(1.02, highest * 1.06 + 0.02))
    widths = [len(label) + 7 for label in axes.get_legend_handles_labels()[1]]
    room = 97  # characters of this size across the figure
    columns = len(widths) if sum(widths) <= room else max(1, room // max(widths))
    legend = figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _draw_rounds(drawn: "Sequence[tuple[Run, Style]]", data: str) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    title = "Accuracy over the rounds: mean and worst-served clients"
    figure, axes = _canvas(title, data, "round", "accuracy on the clients' test data")
    for run, style in drawn:
        rounds = [number for number, _ in run.evaluated]
        mean = [fairness.mean for _, fairness in run.evaluated]
        worst = [fairness.worst10 for _, fairness in run.evaluated]
        look: dict[str, Any] = {"color": style.colour, "marker": style.marker}
        look["markevery"] = max(1, len(rounds) // 10)
        (rings,) = axes.plot(rounds, worst, linewidth=1.5, linestyle=DASHES, **look)
        rings.set(markerfacecolor="white", markersize=6)  # still seen under the mean's dot
        axes.plot(rounds, mean, linewidth=2, markersize=4, label=run.label, **look)
    axes.plot([], [], color="0.3", linewidth=2, label="mean of all clients")
    axes.plot([], [], color="0.3", linewidth=1.5, linestyle=DASHES, label="worst 10 % of clients")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    highest = max(accuracy for run, _ in drawn for _, accuracy in run.curve)
    return _finish(figure, axes, highest)


def _draw_clients(drawn: "Sequence[tuple[Run, Style]]", data: str) -> "Figure":
    from matplotlib.ticker import PercentFormatter

    title = "How evenly the clients are served"
    figure, axes = _canvas(title, data, "clients, from worst to best", "accuracy of the client")
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    clients = [run.evaluated[-1][1].clients for run, _ in drawn]
    worst = max(worst_count(number) / number for number in clients)
    if worst < 1:
        axes.axvspan(0, worst, color="0.93", linewidth=0)
        axes.text(worst / 2, 0.98, "worst\n10 %", transform=axes.get_xaxis_transform(), **SMALL_TOP)
    for run, style in drawn:
        _, fairness = run.evaluated[-1]
        heights = sorted(run.accuracies.values())
        edges = [index / len(heights) for index in range(len(heights) + 1)]
        numbers = f"mean {_percent(fairness.mean)}, worst tenth {_percent(fairness.worst10)}"
        stairs = axes.stairs(heights, edges, baseline=None, label=f"{run.label}: {numbers}")
        stairs.set(color=style.colour, linestyle=style.line, linewidth=2)
    axes.set_xlim(0, 1)
    highest = max(fairness.maximum for run, _ in drawn for _, fairness in run.evaluated[-1:])
    return _finish(figure, axes, highest)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
