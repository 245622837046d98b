"""Everything that the page shows of one study, as data for the template."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from markupsafe import Markup, escape

from deploy.report.fallback import with_fallback
from deploy.report.figures import FigureSpec, drawn
from deploy.report.figures.catalog import RESULTS, ROUNDS, SETS
from deploy.report.figures.svg import for_page, svg_text
from deploy.report.html import cards, diagnostic_tables, overview, study_tables
from deploy.report.html.parts import Part, Remark, SettingsCard, TableData, part
from deploy.report.run_groups import Study

REMARKS: Mapping[str, Callable[[Study], Remark]] = {
    RESULTS: cards.lowest_clients,
    ROUNDS: diagnostic_tables.drift_and_theorem,
    SETS: diagnostic_tables.prediction_sets,
}
NO_TITLE = "Runs"


@dataclass(frozen=True)
class DrawnFigure:
    """A figure with its heading and caption."""

    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True)
class FigureGroup:
    """Figures under one heading, with a remark below them."""

    title: str
    figures: Sequence[Part[DrawnFigure]]
    remark: Part[Remark]


@dataclass(frozen=True)
class StudyView:
    """The parts of a study in the order of the page.

    Attributes:
        title: in the document, "Runs" for a study without one.
        problem: why the whole study cannot be shown, "" if it can.
        runs: paths of its runs, for a study with a problem.
    """

    title: str
    problem: str = ""
    runs: Sequence[str] = ()
    progress: Part[str] = field(default_factory=lambda: Part(None))
    tiles: Part[list[overview.Tile]] = field(default_factory=lambda: Part(None))
    warnings: Part[list[str]] = field(default_factory=lambda: Part(None))
    groups: Sequence[FigureGroup] = ()
    results: Part[TableData] = field(default_factory=lambda: Part(None))
    differences: Part[TableData] = field(default_factory=lambda: Part(None))
    targets: Part[TableData] = field(default_factory=lambda: Part(None))
    unused_replies: Part[TableData] = field(default_factory=lambda: Part(None))
    settings: Part[list[SettingsCard]] = field(default_factory=lambda: Part(None))


def study_view(study: Study, number: int, specs: Sequence[FigureSpec]) -> StudyView:
    """Return the parts of a study. A part that fails has a problem instead of content.

    Args:
        study: the study.
        number: its place in the page, from 1. The ids of its figures contain it.
        specs: the figures to draw.
    """
    return with_fallback(
        study.title or "The study",
        lambda: _view(study, number, specs),
        lambda problem: StudyView(
            study.title or NO_TITLE, problem, [str(run.path or run.label) for run in study.runs]
        ),
    )


def _view(study: Study, number: int, specs: Sequence[FigureSpec]) -> StudyView:
    return StudyView(
        title=study.title or NO_TITLE,
        progress=part("The progress", lambda: overview.progress(study)),
        tiles=part("The best numbers", lambda: overview.tiles(study)),
        warnings=part("The warnings", lambda: overview.warnings(study)),
        groups=figure_groups(study, number, specs),
        results=part("Numbers", lambda: study_tables.results_table(study)),
        differences=part(
            "Difference to the reference", lambda: study_tables.difference_table(study)
        ),
        targets=part("Rounds to target", lambda: study_tables.target_table(study)),
        unused_replies=part(
            "Replies that were not used", lambda: study_tables.unused_replies_table(study)
        ),
        settings=part("Exact settings", lambda: cards.settings_cards(study)),
    )


def figure_groups(study: Study, number: int, specs: Sequence[FigureSpec]) -> list[FigureGroup]:
    """Return the figures that have something to show, under their headings."""
    groups: dict[str, list[Part[DrawnFigure]]] = {}
    for spec in specs:
        figure = part(spec.title, partial(_draw, study, number, spec))
        if figure:
            groups.setdefault(spec.group, []).append(figure)
    return [
        FigureGroup(title, figures, part(f"The remark on: {title}", partial(_remark, study, title)))
        for title, figures in groups.items()
    ]


def _remark(study: Study, group: str) -> Remark | None:
    return REMARKS[group](study) if group in REMARKS else None


def _draw(study: Study, number: int, spec: FigureSpec) -> DrawnFigure | None:
    for _, figure in drawn(study, [spec]):
        svg = for_page(svg_text(figure), f"s{number}-{spec.name}", escape(spec.title))
        return DrawnFigure(spec.title, spec.caption, Markup(svg))
    return None
