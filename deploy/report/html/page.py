"""The report as one HTML file that needs nothing else: no script, font or image from elsewhere."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from string import Template

from deploy.report.fallback import with_fallback
from deploy.report.figures import BRIEF, FIGURES, FigureSpec, drawn
from deploy.report.figures.catalog import RESULTS, ROUNDS, SETS
from deploy.report.figures.style import TOKENS
from deploy.report.figures.svg import for_page, svg_text
from deploy.report.html import diagnostic_tables, study_tables
from deploy.report.html.elements import Html, html, join, tag
from deploy.report.html.overview import state, tiles, warnings
from deploy.report.run_data import RunData
from deploy.report.run_groups import Study, Targets, group_runs

TITLE = "FedKeel report"
DIFFERENCE, TARGET = "Difference to the reference", "Rounds to target"
UNUSED = "Replies that were not used"
REMARKS: Mapping[str, Callable[[Study], Html]] = {
    RESULTS: study_tables.worst_served,
    ROUNDS: diagnostic_tables.of_rounds,
    SETS: diagnostic_tables.of_sets,
}
ALL_FIGURES = 12  # studies; with more, each has only the BRIEF figures


def render(
    runs: Sequence[RunData],
    *,
    title: str = TITLE,
    left_out: Mapping[str, str] | None = None,
    targets: Targets | None = None,
    live: bool = False,
) -> str:
    """Return the report of these runs as one HTML document; the same runs give the same bytes.

    Args:
        runs: as `discover` finds them, whatever they have done so far; also none.
        title: of the document.
        left_out: folders of runs that could not be read, and why.
        targets: see `studies`.
        live: whether it is served while runs go on, and follows them.
    """
    found = group_runs(runs, targets)
    pictures = FIGURES if len(found) <= ALL_FIGURES else BRIEF
    sections = [_study(study, place, pictures) for place, study in enumerate(found, start=1)]
    scripts = [_asset("page.js"), _asset("panels.js")]
    return Template(_asset("page.html")).substitute(
        title=html(title),
        policy=_policy(scripts, live),
        style=_tokens() + _asset("page.css") + _asset("panels.css"),
        live="true" if live else "false",
        navigation=_navigation(found),
        about=_about(found, left_out or {}, pictures),
        studies=join(sections),
        panels=_asset("panels.html"),
        scripts="".join(f"<script>{script}</script>" for script in scripts),
    )


def _asset(name: str) -> str:
    return files("deploy.report.html").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str], live: bool) -> str:
    """What a browser may load: these scripts and nothing else, even if a name were to slip out."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    sources = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    asked = "connect-src 'self'; " if live else ""
    return f"default-src 'none'; {asked}style-src 'unsafe-inline'; script-src {sources}"


def _tokens() -> str:
    light = "".join(f"{token}:{colour};" for colour, (token, _) in TOKENS.items())
    dark = "".join(f"{token}:{colour};" for token, colour in TOKENS.values())
    light, dark = f"{light}color-scheme:light;", f"{dark}color-scheme:dark;"
    return (
        f":root{{{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
        f"@media print{{:root:root,:root:root[data-theme]{{{light}}}}}\n"
    )


def _navigation(found: Sequence[Study]) -> Html:
    names = [study.title or "runs" for study in found]
    links = [tag("a", name, href=f"#study-{place}") for place, name in enumerate(names, start=1)]
    return join(
        [*links, tag("a", "How it works", href="#panels"), tag("a", "How to read it", href="#how")]
    )


def _about(
    found: Sequence[Study], left_out: Mapping[str, str], pictures: Sequence[FigureSpec]
) -> Html:
    parts: list[Html] = []
    if not found:
        parts.append(tag("p", "There are no runs yet.", class_="lead"))
    if len(pictures) < len(FIGURES):
        parts.append(
            tag(
                "p",
                f"There are {len(found)} studies, so that each has only its tables and "
                f"{len(BRIEF)} figures here; ask for fewer runs to see all figures.",
                class_="note",
            )
        )
    broken = [tag("li", f"{folder} is left out: {why}") for folder, why in left_out.items()]
    return join([*parts, tag("ul", *broken, class_="warnings") if broken else ""])


def _study(study: Study, place: int, pictures: Sequence[FigureSpec]) -> Html:
    said = partial(tag, "section", id=f"study-{place}", class_="study")
    return with_fallback(
        study.title or "The study",
        lambda: said(tag("h2", study.title or "Runs"), *_parts(study, place, pictures)),
        lambda why: said(tag("h2", study.title or "Runs"), _missing(why), _members(study)),
    )


def _parts(study: Study, place: int, pictures: Sequence[FigureSpec]) -> list[Html]:
    return [
        _block("How far it is", lambda: tag("p", state(study), class_="note")),
        _block("The best numbers", lambda: tiles(study)),
        _block("What to be careful about", lambda: _warnings(study)),
        *_groups(study, place, pictures),
        _block("Numbers", lambda: _titled("Numbers", study_tables.summary(study))),
        tag(
            "div",
            _block(DIFFERENCE, lambda: _titled(DIFFERENCE, study_tables.differences(study))),
            _block(TARGET, lambda: _titled(TARGET, study_tables.targets(study))),
            class_="pair",
        ),
        _block(UNUSED, lambda: _titled(UNUSED, study_tables.losses(study))),
        _block("Exact settings", lambda: study_tables.settings(study)),
    ]


def _block(name: str, make: Callable[[], Html]) -> Html:
    return with_fallback(name, make, _missing)


def _missing(why: str) -> Html:
    return tag("p", why, class_="note")


def _members(study: Study) -> Html:
    return tag("ul", *(tag("li", run.path or run.label) for run in study.runs), class_="warnings")


def _warnings(study: Study) -> Html:
    said = [tag("li", text) for text in warnings(study)]
    return tag("ul", *said, class_="warnings") if said else Html()


def _groups(study: Study, place: int, pictures: Sequence[FigureSpec]) -> list[Html]:
    """The figures under their headings, with what there is to say of them."""
    found: dict[str, list[Html]] = {}
    for picture in pictures:
        figure = _block(picture.title, partial(_drawn, study, place, picture))
        if figure:
            found.setdefault(picture.group, []).append(figure)
    return [
        tag(
            "div",
            tag("h3", group, class_="group"),
            tag("div", *figures, class_="figures"),
            _block(f"What is to be said of: {group}", partial(REMARKS[group], study))
            if group in REMARKS
            else "",
            class_="block",
        )
        for group, figures in found.items()
    ]


def _drawn(study: Study, place: int, picture: FigureSpec) -> Html:
    """The picture for the page; nothing if the study has nothing to show in it."""
    name = f"s{place}-{picture.name}"
    figures = [
        _figure(picture, for_page(svg_text(figure), name, html(picture.title)))
        for _, figure in drawn(study, [picture])
    ]
    return join(figures)


def _figure(picture: FigureSpec, svg: str) -> Html:
    return tag(
        "figure",
        tag("h4", picture.title),
        tag(
            "button", Html(svg), type="button", class_="zoom", aria_label=f"{picture.title}, larger"
        ),
        tag("figcaption", picture.caption),
        class_="figure",
    )


def _titled(title: str, content: Html) -> Html:
    return tag("div", tag("h3", title), content, class_="block") if content else Html()
