"""Figures of the effect of settings: ablations, and the values of one setting."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from common.config import RunConfig
from deploy.report.diagnostic_values import number_in
from deploy.report.figures.canvas import (
    SIZE,
    SMALL,
    accuracy_axis,
    canvas,
    percent,
    set_names,
    write_text,
)
from deploy.report.figures.legend import legend, legend_entry
from deploy.report.figures.style import (
    INK,
    MEASURES,
    MUTED,
    PAPER,
)
from deploy.report.metrics import (
    evaluated,
    final,
    reference,
    varied_alone,
)
from deploy.report.run_groups import Family, Study, setting_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 8  # pairs of bars in one figure
DECADES = 30  # largest over smallest value, above which an axis is logarithmic


def ablations(study: Study) -> "Figure | None":
    """Draw the final accuracy of a method with one part switched off, as bars."""
    rows = _ablation(study)
    if not rows:
        return None
    figure, (axes,) = canvas("accuracy", height=max(SIZE[1], 1.1 + 0.42 * len(rows)))
    _draw_bars(axes, rows)
    axes.set_xlim(0, 1.1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    legend(figure, _keys())
    return figure


def _ablation(study: Study) -> list[tuple[str, Family]]:
    """Return the complete method, its variants with one part off, and the reference."""
    base = reference(study)
    variants: list[tuple[str, Family]] = []
    for whole in evaluated(study):
        rivals = [f for f in evaluated(study) if f.method == whole.method and not f.personal]
        parts = {} if whole.personal else _parts_off(whole, rivals)
        if len(parts) >= len(variants) and parts:
            variants = [(whole.method, whole), *parts.items()]
    rows = variants[: MOST - 1]
    own = {family.method for _, family in rows}
    return [*rows, (base.method, base)] if rows and base and base.method not in own else rows


def _parts_off(whole: Family, families: Sequence[Family]) -> dict[str, Family]:
    """Return the families that differ from `whole` in one setting: a switch, or a 0."""
    defaults = RunConfig().to_flat()
    variants = {}
    for family in families:
        differ = [k for k, v in family.varied.items() if v != whole.varied[k]]
        if len(differ) == 1:
            value, usual = family.varied[differ[0]], defaults.get(differ[0])
            if value != usual and (isinstance(value, bool) or not value):
                variants[setting_text(differ[0], value)] = family
    return variants


def _draw_bars(axes: "Axes", rows: Sequence[tuple[str, Family]]) -> None:
    for place, (_, family) in enumerate(rows):
        for (_, get, colour, _, _), shift in zip(MEASURES, (-0.19, 0.19), strict=True):
            value = final(family, get)
            if value is None:
                continue
            axes.barh(place + shift, value.mean, height=0.33, color=colour, alpha=0.8, linewidth=0)
            if value.seeds > 1:
                axes.hlines(place + shift, value.low, value.high, color=INK, linewidth=1)
            text = f"{100 * value.mean:.1f}"
            write_text(axes, value.high + 0.012, place + shift, text, va="center", color=INK)
    set_names(axes.yaxis, [name for name, _ in rows])
    axes.invert_yaxis()
    axes.grid(visible=False)
    percent(axes.xaxis)


def values(study: Study, rank: int = 0) -> "Figure | None":
    """Draw mean accuracy and the worst 10 % against a setting that varies alone.

    Args:
        study: the study.
        rank: which setting: 0 for the one with the most values.
    """
    by_setting = {
        name: along
        for name, along in varied_alone(study).items()
        if not all(isinstance(value, bool) for value in along)
    }
    ordered = sorted(by_setting, key=lambda name: -len(by_setting[name]))
    if rank >= len(ordered):
        return None
    figure, (axes,) = canvas("", "accuracy")
    level = _draw_along(axes, ordered[rank], by_setting[ordered[rank]], study)
    legend(figure, [*_keys(), *level])
    return figure


def _keys() -> list[Any]:
    return [
        legend_entry(name, colour, linewidth=4, alpha=0.8) for _, _, colour, _, name in MEASURES
    ]


def _draw_along(axes: "Axes", name: str, along: Mapping[Any, Family], study: Study) -> list[Any]:
    """Draw the families by value. Return the legend entry of the reference."""
    places = _places(axes, list(along))
    base = reference(study)
    if base and base.method in {family.method for family in along.values()}:
        base = None
    dotted: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (1, 2))}
    for _, get, colour, marker, _ in MEASURES:
        ends = [final(family, get) for family in along.values()]
        pairs = [(x, end) for x, end in zip(places, ends, strict=True) if end]
        level = final(base, get) if base else None
        if level:
            axes.axhline(level.mean, color=colour, zorder=1, **dotted)
        xs = [x for x, _ in pairs]
        axes.vlines(xs, [e.low for _, e in pairs], [e.high for _, e in pairs], color=colour,
                    linewidth=5, alpha=0.22)  # fmt: skip
        axes.plot(xs, [e.mean for _, e in pairs], color=colour, marker=marker, linewidth=2,
                  markersize=6, markeredgecolor=PAPER, zorder=3)  # fmt: skip
    accuracy_axis(axes, axes.dataLim.y0, axes.dataLim.y1)
    axes.set_xlabel(name, fontsize=SMALL, color=INK, parse_math=False)
    return [legend_entry(base.method, MUTED, **dotted)] if base else []


def _places(axes: "Axes", values: Sequence[Any]) -> list[float]:
    """Return the x positions of the values: to scale for numbers, else in order."""
    numbers = [v for v in values if not isinstance(v, bool) and number_in(v) is not None]
    shown = [fill(f"{v:g}" if isinstance(v, float) else str(v), 14) for v in values]
    low, high = (min(numbers, default=0), max(numbers, default=0))
    whole = len(numbers) == len(values)
    positive = [value for value in numbers if value > 0]
    wide = bool(positive) and high >= DECADES * min(positive)
    if whole and low > 0 and wide:
        axes.set_xscale("log")
        axes.minorticks_off()
    places = [float(v) for v in numbers] if whole and (low > 0 or not wide) else None
    chosen = places or [float(place) for place in range(len(values))]
    axes.set_xticks(chosen, shown)
    axes.margins(x=0.06)
    return chosen
