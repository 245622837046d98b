"""What `fedkeel report` leaves behind: the page, its numbers, and the figures as files."""

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
    """Write the report of the runs in these folders and below them.

    Args:
        places: folders of runs, or that hold some.
        out: the page; the same name with .json gets its numbers.
        figures: folder for the figures as PNG and SVG, made if needed; None for none.
        title: of the page; empty for the usual one.
        targets: the accuracy to be reached, by data set; "" stands for all others.
        events: event files to write as well; they are ended.

    Returns:
        The files written, and the folders of runs that could not be read with the reason.

    Raises:
        ConfigError: there is no such folder, or no run in it that can be read; the page or the
            figures cannot be where they are wanted.
    """
    _refuse_wrong_places(out, figures)
    runs, left_out = discover(places)
    if not runs:
        told = "\n  ".join(left_out.values())
        raise ConfigError(f"no run can be read:\n  {told}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as file:
        page = render(runs, title=title or TITLE, left_out=left_out, targets=targets)
        file.write(page.encode())
    numbers = out.with_suffix(".json")
    write_numbers(numbers, runs, left_out, targets)
    paths = [out, numbers]
    found = group_runs(runs, targets) if figures else []
    for place, study in enumerate(found, start=1):
        prefix = f"{place}-" if len(found) > 1 else ""
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
