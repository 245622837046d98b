"""Write the files of `fedkeel report`: the page, its numbers, and the figures."""

from collections.abc import Sequence
from pathlib import Path

from common.errors import ConfigError
from common.io.files import atomic_write
from deploy.report.figures import write_figures
from deploy.report.html.page import TITLE, render
from deploy.report.report_json import write_numbers
from deploy.report.run_data import discover, name_below
from deploy.report.run_groups import Targets, group_runs
from deploy.report.tensorboard_log import TensorBoardLog


def write_report(
    places: Sequence[Path],
    out: Path,
    figures: Path | None = None,
    title: str = "",
    targets: Targets | None = None,
    events: TensorBoardLog | None = None,
) -> tuple[list[Path], dict[str, str]]:
    """Write the report of the runs in and below these directories.

    Args:
        places: run directories, or directories that contain some.
        out: the page. Its numbers go to the same name with .json.
        figures: directory for the figures as PNG and SVG, created if needed. None writes none.
        title: of the page, "" for the default.
        targets: the accuracy to reach, by data set. "" stands for all other data sets.
        events: TensorBoard files to write as well. They are closed.

    Returns:
        The written files, and the error message of each run directory that cannot be read.

    Raises:
        ConfigError: there is no readable run, or the page or the figures cannot be written there.
    """
    _refuse_wrong_places(out, figures)
    runs, left_out = discover(places)
    if not runs:
        reasons = "\n  ".join(left_out.values())
        raise ConfigError(f"no run can be read:\n  {reasons}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as file:
        page = render(runs, title=title or TITLE, left_out=left_out, targets=targets)
        file.write(page.encode())
    numbers = out.with_suffix(".json")
    write_numbers(numbers, runs, left_out, targets)
    paths = [out, numbers]
    studies = group_runs(runs, targets) if figures else []
    for place, study in enumerate(studies, start=1):
        prefix = f"{place}-" if len(studies) > 1 else ""
        paths += write_figures(study, figures or out.parent, prefix)
    if events:
        events.write(runs, [name_below(places, run.path) for run in runs if run.path])
        events.close()
        paths.append(events.place)
    return paths, left_out


def _refuse_wrong_places(out: Path, figures: Path | None) -> None:
    if out.suffix == ".json":
        raise ConfigError(f"the page cannot be {out}, where its numbers go; give it another ending")
    if out.is_dir():
        raise ConfigError(f"the page cannot be {out}, a folder; give a file, as {out}/report.html")
    if figures and figures.exists() and not figures.is_dir():
        raise ConfigError(f"the figures cannot go to {figures}, a file; give a folder")
