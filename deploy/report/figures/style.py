"""The colours of all figures, and the style of each family."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deploy.report.metrics import (
    OfFairness,
    evaluated,
    final,
    mean,
    name_of,
    reference,
    representative,
    worst10,
)
from deploy.report.run_groups import Family, Study

# Colours of Okabe and Ito, safe for colour-blind readers. Their yellow is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
PAPER, INK, MUTED, LINE, WARN = "#FFFFFF", "#1D2330", "#646B78", "#DDE1E7", "#B3261E"
PAGE = "#F5F6F8"  # behind the figures
GOOD, BAD = COLOURS[0], COLOURS[1]  # of a number with a sign or a direction
TOKENS: Mapping[str, tuple[str, str]] = {  # CSS variable of each colour, and its dark variant
    PAGE: ("--page", "#0C0F13"),
    PAPER: ("--paper", "#161A20"),
    INK: ("--ink", "#E7EAEF"),
    MUTED: ("--muted", "#9AA3B0"),
    LINE: ("--line", "#2C333D"),
    WARN: ("--warn", "#FF8F85"),
    COLOURS[0]: ("--series-1", "#4FA8E3"),
    COLOURS[1]: ("--series-2", "#F08A45"),
    COLOURS[2]: ("--series-3", "#35C49A"),
    COLOURS[3]: ("--series-4", "#E2A5C9"),
    COLOURS[4]: ("--series-5", "#8FD2F5"),
    COLOURS[5]: ("--series-6", "#F0BC4A"),
    COLOURS[6]: ("--series-7", "#F4F6F9"),
}
MEASURES: Sequence[
    tuple[str, OfFairness, str, str, str]
] = (  # drawn side by side: key, metric, colour, marker, name
    ("mean", mean, GOOD, "o", "mean of clients"),
    ("worst10", worst10, BAD, "s", "worst 10 % of clients"),
)
MARKERS = ("o", "s", "^", "D")  # the next marker and line after each cycle of colours
LINES = ("solid", "dashed", "dotted", "dashdot")
DASHES = (0, (3.2, 1.8))


@dataclass(frozen=True)
class Style:
    """The colour, marker and line of one series.

    Attributes:
        colour: one of COLOURS, or MUTED in the background.
        marker: of its points.
        line: of its curves.
        faint: whether its curve is grey in the background.
    """

    colour: str
    marker: str = "o"
    line: str = "solid"
    faint: bool = False

    @classmethod
    def number(cls, index: int) -> "Style":
        """Return the style of the series at this index."""
        turn, place = divmod(index, len(COLOURS))
        turn %= len(MARKERS)
        return cls(COLOURS[place], MARKERS[turn], LINES[turn])

    @property
    def rank(self) -> int:
        """0 for coloured series, 1 for other methods, 2 for their variants."""
        return 2 if self is FAINT else int(self.faint)

    @property
    def place(self) -> int:
        """The number of the colour in the page, from 1. 0 for a series in the background."""
        return 0 if self.faint else COLOURS.index(self.colour) + 1


FAINT = Style(MUTED, faint=True)


@dataclass(frozen=True)
class Series:
    """A family with its name and style in the figures."""

    family: Family
    name: str
    style: Style


def series_of(study: Study) -> list[Series]:
    """Return the evaluated families with a style, which is the same in every figure.

    With more families than colours, the reference and the representatives of the best methods
    get a colour. The other families are grey in the background of curves. They come first, so
    that they are drawn below. Representatives of the other methods keep a colour and a marker
    of their own in scatter plots.
    """
    families = evaluated(study)
    if len(study.families) <= len(COLOURS):  # a family without a result keeps its colour free
        places = [(f, place) for place, f in enumerate(study.families) if _among(f, families)]
        return [Series(f, name_of(f), Style.number(place)) for f, place in places]
    leaders = _leaders(study, families)
    front = [f for f in families if _among(f, leaders[: len(COLOURS)])]
    middle = leaders[len(COLOURS) :]
    back = [f for f in families if not _among(f, leaders)]
    styles = [replace(Style.number(len(COLOURS) + k), faint=True) for k in range(len(middle))]
    return [
        *(Series(family, name_of(family), FAINT) for family in back),
        *(Series(f, name_of(f), style) for f, style in zip(middle, styles, strict=True)),
        *(Series(f, name_of(f), Style.number(place)) for place, f in enumerate(front)),
    ]


def coloured_series(study: Study) -> list[Series]:
    """Return the series that have a colour in curves."""
    return [each for each in series_of(study) if not each.style.faint]


def _leaders(study: Study, families: Sequence[Family]) -> list[Family]:
    """Return the reference, then the representative of each other method, the best first."""
    groups: dict[tuple[str, bool], list[Family]] = {}
    for family in families:
        groups.setdefault((family.method or family.label, family.personal), []).append(family)
    leaders = [leader for leader in map(representative, groups.values()) if leader]
    leaders.sort(key=lambda family: -getattr(final(family, mean), "mean", 0.0))
    base = reference(study)
    first = [base] if base else []
    return [*first, *(one for one in leaders if one is not base)]


def _among(family: Family, families: Sequence[Family]) -> bool:
    return any(family is one for one in families)
