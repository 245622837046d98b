"""The figures of a report, each a function of a study; matplotlib is loaded when one is drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.report.figures.clients import against_spread, against_worst, distribution
from deploy.report.figures.rounds import accuracy, target, worst
from deploy.report.figures.style import Draw
from deploy.report.figures.svg import svg_text, titled, write_png
from deploy.report.figures.sweeps import ablations, values
from deploy.report.runs import Run
from deploy.report.studies import Family, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """One kind of figure.

    Attributes:
        name: of its files.
        title: what it is.
        caption: a sentence: what to see, and by which definition.
        draw: returns the figure, None when the study has nothing to show in it.
    """

    name: str
    title: str
    caption: str
    draw: Draw


FIGURES = (
    Picture(
        "accuracy",
        "Accuracy over the rounds",
        "Mean over the clients, with the range over seeds, and the worst tenth of clients; a ring "
        "marks where a method first reaches the reference's final accuracy (dotted).",
        accuracy,
    ),
    Picture(
        "worst",
        "The worst-served clients over the rounds",
        "The mean of the ceil(N/10) least accurate clients of each evaluation, with the range "
        "over seeds.",
        worst,
    ),
    Picture(
        "clients",
        "How evenly the clients are served",
        "Each step is a client of the last evaluation, from worst to best: a flat line serves all "
        "alike, and what counts is its left end. With several seeds, the mean client of each rank.",
        distribution,
    ),
    Picture(
        "spread",
        "Accuracy against spread",
        "Up is more accurate, left is more even. Large: mean over seeds; small: each seed. Spread "
        "is the population standard deviation of the clients' accuracies.",
        against_spread,
    ),
    Picture(
        "tenth",
        "Accuracy against the worst tenth",
        "Up and to the right is better for everybody. The worst tenth is the mean of the "
        "ceil(N/10) least accurate clients.",
        against_worst,
    ),
    Picture(
        "target",
        "How soon the reference is reached",
        "Evaluated rounds until the mean curve first has the reference's final accuracy, and how "
        "many times sooner that is.",
        target,
    ),
    Picture(
        "ablations",
        "One part switched off",
        "The method as a whole, then without one of its parts each; thin lines are the range over "
        "seeds. What a part is worth is the length that is missing.",
        ablations,
    ),
    Picture(
        "values",
        "What a setting does",
        "The end of runs that differ in this setting alone; pale bars are the range over seeds, "
        "dotted lines the reference.",
        values,
    ),
    Picture(
        "values-2",
        "What another setting does",
        "As above, for the setting with the next most values.",
        partial(values, rank=1),
    ),
    Picture(
        "values-3",
        "What a third setting does",
        "As above, for the setting with the next most values.",
        partial(values, rank=2),
    ),
)


def drawn(
    study: Study, pictures: Sequence[Picture] = FIGURES
) -> Iterator[tuple[Picture, "Figure"]]:
    """Draw what the study has something to show for."""
    for picture in pictures:
        figure = picture.draw(study)
        if figure is not None:
            yield picture, figure


def write_figures(study: Study, folder: Path, prefix: str = "") -> list[Path]:
    """Write the study's figures as PNG and SVG with their titles and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture, figure in drawn(study):
        titled(figure, picture.title, study.title)
        paths.append(write_png(figure, folder / f"{prefix}{picture.name}.png"))
        path = folder / f"{prefix}{picture.name}.svg"
        path.write_text(svg_text(figure), encoding="utf-8")
        paths.append(path)
    return paths


def plot_runs(runs: Sequence[Run], out_dir: Path, data: str = "") -> list[Path]:
    """Draw the runs of one command, each for itself; without an evaluation nothing is written.

    Args:
        runs: one or several, each in its own colour.
        out_dir: made if needed; an older plot of the same name is replaced.
        data: the data set and its split in words, for the subtitle.

    Returns:
        The PNGs written: `accuracy.png` (mean and worst 10 % over the rounds) and `clients.png`
        (every client's accuracy at the last evaluation, from worst to best).
    """
    families = tuple(Family(run.label, "", {}, {}, (run,)) for run in runs)
    paths = []
    for picture, figure in drawn(Study(data, {}, families), (FIGURES[0], FIGURES[2])):
        out_dir.mkdir(parents=True, exist_ok=True)
        titled(figure, picture.title, data)
        paths.append(write_png(figure, out_dir / f"{picture.name}.png"))
    return paths
