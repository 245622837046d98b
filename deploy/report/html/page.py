"""The report as one HTML file. It loads no script, font or image from elsewhere."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from common.io.text import printable
from deploy.report.figures import BRIEF, FIGURES
from deploy.report.figures.style import TOKENS
from deploy.report.html.study_view import study_view
from deploy.report.run_data import RunData
from deploy.report.run_groups import Targets, group_runs

PACKAGE = "deploy.report.html"
TITLE = "FedKeel report"
ALL_FIGURES = 12  # studies. With more, each has only the BRIEF figures.


def render(
    runs: Sequence[RunData],
    *,
    title: str = TITLE,
    left_out: Mapping[str, str] | None = None,
    targets: Targets | None = None,
    live: bool = False,
) -> str:
    """Return the report of these runs as one HTML document. Equal runs give equal bytes.

    Args:
        runs: as returned by `discover`, finished or not. May be empty.
        title: of the document.
        left_out: why a run could not be read, by its directory.
        targets: see `group_runs`.
        live: whether the page is served by `fedkeel watch` and updates itself.
    """
    studies = group_runs(runs, targets)
    specs = FIGURES if len(studies) <= ALL_FIGURES else BRIEF
    scripts = [_asset("page.js"), _asset("panels.js")]
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            live=live,
            policy=_policy(scripts, live),
            style=_tokens() + _asset("page.css") + _asset("panels.css"),
            scripts=scripts,
            studies=[
                study_view(study, place, specs) for place, study in enumerate(studies, start=1)
            ],
            left_out=[f"{path} is left out: {why}" for path, why in (left_out or {}).items()],
            all_figures=len(specs),
            total_figures=len(FIGURES),
        )
    )


@cache
def environment() -> Environment:
    """Return the templates. Every value is made printable and escaped, unless it is Markup."""
    return Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )


def _asset(name: str) -> Markup:
    return Markup(files(PACKAGE).joinpath("assets", name).read_text(encoding="utf-8"))


def _policy(scripts: Sequence[str], live: bool) -> Markup:
    """Return the Content-Security-Policy: only these scripts run, even if escaping fails."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    sources = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    connect = "connect-src 'self'; " if live else ""
    return Markup(f"default-src 'none'; {connect}style-src 'unsafe-inline'; script-src {sources}")


def _tokens() -> Markup:
    """Return the CSS variables of the colours, light and dark."""
    light = "".join(f"{token}:{colour};" for colour, (token, _) in TOKENS.items())
    dark = "".join(f"{token}:{colour};" for token, colour in TOKENS.values())
    light, dark = f"{light}color-scheme:light;", f"{dark}color-scheme:dark;"
    return Markup(
        f":root{{{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
        f"@media print{{:root:root,:root:root[data-theme]{{{light}}}}}\n"
    )
