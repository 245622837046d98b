"""Heat maps of shares from 0 to 1."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = 20  # of a heat map


def cell_colour(colour: str, share: float) -> tuple[float, float, float, float]:
    """Return the colour of a cell: nearly transparent at 0, light enough for text at 1."""
    from matplotlib.colors import to_rgba

    return to_rgba(colour, 0.04 + 0.62 * min(max(share, 0.0), 1.0))


def draw_cells(axes: "Axes", grid: Sequence[Sequence[float | None]], colour: str) -> None:
    """Draw shares from 0 to 1 as a heat map, the first row on top. None leaves a cell empty.

    All cells of one shade are one path, which keeps the SVG small for hundreds of clients.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    shades: dict[int, list[Path]] = {}
    gap = 0.03 if len(grid) <= 40 else 0.0
    for row, line in enumerate(grid):
        for column, share in enumerate(line):
            if share:
                x, y, side = column - 0.5 + gap, row - 0.5 + gap, 1 - 2 * gap
                corners = [(x, y), (x + side, y), (x + side, y + side), (x, y + side), (x, y)]
                shades.setdefault(math.ceil(share * SHADES), []).append(Path(corners, closed=True))
    for shade, paths in sorted(shades.items()):
        look = {"facecolor": cell_colour(colour, shade / SHADES), "linewidth": 0}
        axes.add_patch(PathPatch(Path.make_compound_path(*paths), **look))
    axes.set_xlim(-0.5, max(map(len, grid), default=1) - 0.5)
    axes.set_ylim(len(grid) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
