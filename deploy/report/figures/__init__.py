"""The figures of a report. Each is a function of a study. matplotlib is imported when one draws."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.report.fallback import with_fallback
from deploy.report.figures.catalog import BRIEF, FIGURES, FigureSpec
from deploy.report.figures.svg import svg_text, titled, write_png
from deploy.report.run_data import RunData
from deploy.report.run_groups import Family, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BRIEF", "FIGURES", "FigureSpec", "drawn", "plot_runs", "write_figures"]


def drawn(
    study: Study, pictures: Sequence[FigureSpec] = FIGURES
) -> Iterator[tuple[FigureSpec, "Figure"]]:
    """Yield the figures that have something to show."""
    for picture in pictures:
        figure = picture.draw(study)
        if figure is not None:
            yield picture, figure


def write_figures(study: Study, folder: Path, prefix: str = "") -> list[Path]:
    """Write the figures of a study as PNG and SVG with titles. Return the paths.

    A figure that cannot be drawn is logged and left out.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for picture in FIGURES:
        write = partial(_write, study, picture, folder / f"{prefix}{picture.name}")
        paths += with_fallback(picture.title, write, lambda _: [], reraise=(OSError,))
    return paths


def _write(study: Study, picture: FigureSpec, place: Path) -> list[Path]:
    """Write one figure as .png and .svg. Return [] if it has nothing to show."""
    paths = []
    for _, figure in drawn(study, [picture]):
        titled(figure, picture.title, study.title)
        text = svg_text(figure)
        paths = [place.with_name(f"{place.name}.{kind}") for kind in ("png", "svg")]
        write_png(figure, paths[0])
        paths[1].write_text(text, encoding="utf-8")
    return paths


def plot_runs(runs: Sequence[RunData], out_dir: Path, data: str = "") -> list[Path]:
    """Draw the runs of one command. Write nothing without an evaluation.

    Args:
        runs: one or several, each in its own colour.
        out_dir: created if needed. Replaces older plots of the same name.
        data: the data set and its split in words, for the subtitle.

    Returns:
        The PNGs written: `accuracy.png` (mean and worst 10 % over the rounds) and `clients.png`
        (final accuracy of every client, from lowest to highest).
    """
    families = tuple(Family(run.label, "", {}, {}, (run,)) for run in runs)
    paths = []
    for picture, figure in drawn(Study(data, {}, families), BRIEF):
        out_dir.mkdir(parents=True, exist_ok=True)
        titled(figure, picture.title, data)
        paths.append(write_png(figure, out_dir / f"{picture.name}.png"))
    return paths
