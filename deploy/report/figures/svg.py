"""Figures as PNG and SVG files, and as SVG inside a page."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, filterwarnings

from common.io.text import printable
from deploy.report.figures.canvas import SMALL
from deploy.report.figures.style import (
    INK,
    MUTED,
    PAPER,
    TOKENS,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS = 200  # pixels per inch of the PNG
SALT: Any = {"svg.fonttype": "none", "svg.hashsalt": "fedkeel"}


def titled(figure: "Figure", title: str, data: str = "") -> "Figure":
    """Write a title and the data set above the figure, for a file of its own."""
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + (0.62 if data else 0.4))
    figure.suptitle(
        printable(title) + ("\n " if data else ""),
        x=0.015,
        ha="left",
        fontsize=13.5,
        fontweight="bold",
        color=INK,
        parse_math=False,
    )
    top = 1 - 0.36 / figure.get_size_inches()[1]
    look: Any = {"ha": "left", "va": "top", "fontsize": SMALL, "color": MUTED, "parse_math": False}
    figure.text(0.015, top, shorten(printable(data), 84, placeholder=" ..."), **look)
    return figure


def write_png(figure: "Figure", path: Path) -> Path:
    """Write a figure as PNG on a white background."""
    with _any_script():
        figure.savefig(path, dpi=DOTS, facecolor=PAPER)
    return path


def svg_text(figure: "Figure") -> str:
    """Return a figure as SVG with text elements. Equal figures give equal bytes."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context(SALT), _any_script():
        figure.savefig(
            out,
            format="svg",
            facecolor="none",
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    return _NUMBER.sub(_shorter, out.getvalue())


@contextmanager
def _any_script() -> Iterator[None]:
    """Ignore the warning about characters that the font lacks. They become boxes in a PNG."""
    with catch_warnings():
        filterwarnings("ignore", message="Glyph .* missing from")
        yield


_NUMBER = re.compile(r"(?<=[ \"(])-?\d+\.\d{3,}")
_PROLOGUE = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style.*?</style>"
    r"| xmlns(?::xlink)?=\"[^\"]*\"",
    re.S,
)
_NAMED: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r'(?<= )id="'), 'id="{}-'),
    (re.compile(r'xlink:href="#'), 'href="#{}-'),
    (re.compile(r"url\(#"), "url(#{}-"),
)
_FONT = re.compile(r"font: (?:(\w+) )?([\d.]+)px [^;\"]*")


def for_page(svg: str, name: str, words: str) -> str:
    """Return an SVG for use inside a page, with unique ids and the colours and fonts of the page.

    Args:
        svg: as returned by `svg_text`.
        name: prefix of its ids, unique in the page.
        words: description for screen readers, escaped.
    """
    svg = _PROLOGUE.sub("", svg).strip()
    for pattern, form in _NAMED:
        svg = pattern.sub(form.format(name), svg)
    for colour, (token, _) in TOKENS.items():
        svg = re.sub(f"{colour}(?![0-9a-f])", f"var({token})", svg, flags=re.I)
    svg = _FONT.sub(lambda match: f"font-size: {match[2]}px", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{words}" ', 1)


def _shorter(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
