"""The command `fedkeel sweep`: from plans to runs, and what they came to."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tomli_w
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.errors import ConfigError, did_you_mean
from common.io.files import atomic_write, file_lock
from deploy.sweep.jobs import Result, job_slots, refuse_a_gpu_that_is_not_there, run_all
from deploy.sweep.plan import RUNS, Plan, is_folder, read_plan
from deploy.sweep.run_status import RunStatus, remove_leftovers, run_statuses
from deploy.sweep.runs import PlannedRun, runs_of
from deploy.sweep.sweep_progress import monitoring

FAILED = 1
PLAN, LOCK = "plan.toml", "sweep.lock"
PRESETS = Path(__file__).with_name("presets")
ALL = "all"
ENGINES = ("inline", "simulation")
console = Console(highlight=False)

Jobs = Annotated[
    int, typer.Option("--jobs", min=0, help="Runs at a time. 0: one per core, or one per GPU.")
]


@dataclass(frozen=True)
class Sweep:
    """A plan, the runs that it comes to, and the folder that they are in."""

    plan: Plan
    folder: Path
    runs: list[PlannedRun]


def sweep(
    plans: Annotated[
        list[str] | None,
        typer.Argument(metavar="PLAN...", help="A TOML file, the name of a preset, or: all."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use the small version of the plan, its [quick].")
    ] = False,
    pairs: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="A run-config key, for all runs."),
    ] = [],  # noqa: B006 - typer's way
    out: Annotated[Path, typer.Option("--out", help="Folder of the runs.")] = Path("runs"),
    name: Annotated[
        str, typer.Option("--name", help="Folder below --out. Default: the plan's name.")
    ] = "",
    jobs: Jobs = 0,
    engine: Annotated[
        str, typer.Option("--engine", help="inline, or simulation (Flower's, on Ray).")
    ] = "inline",
    list_: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False,
) -> None:
    """Do all runs of a plan. The same command again does the missing runs."""
    if list_ or not plans:
        console.print(presets(), markup=False)
        return
    paths = [path for plan in plans for path in find(plan)]
    if name and len(paths) > 1:
        raise typer.BadParameter("--name is for one plan; these have their own")
    read = [read_plan(path, quick=quick, pairs=pairs) for path in dict.fromkeys(paths)]
    run_plans(read, out, name, jobs, engine)


def run_plans(plans: Sequence[Plan], out: Path, name: str, jobs: int, engine: str) -> None:
    """Do what is missing of these plans, and show what they came to.

    Args:
        plans: the plans, each with a folder of its own.
        out: parent of these folders.
        name: name of the folder of a single plan. "" means the plan's name.
        jobs: number of runs at a time. 0 means as many as fit.
        engine: engine of every run.

    Raises:
        ConfigError: a run cannot be made, or not in this folder. No run has started.
        typer.Exit: a run failed.
    """
    if engine not in ENGINES:
        raise typer.BadParameter(f'a sweep has no engine "{engine}": {" or ".join(ENGINES)}')
    if name and not is_folder(name):
        raise typer.BadParameter(f"--name must be the name of a folder, not {name!r}")
    names = [name or plan.name for plan in plans]
    for twice in {one for one in names if names.count(one) > 1}:
        raise typer.BadParameter(f'two of these plans are called "{twice}"; do one after the other')
    home = out.expanduser().absolute()
    sweeps = [
        Sweep(plan, home / its, runs_of(plan)) for plan, its in zip(plans, names, strict=True)
    ]
    refuse_a_gpu_that_is_not_there([run.config for one in sweeps for run in one.runs])
    with ExitStack() as locks:
        for one in sweeps:
            locks.enter_context(_only_sweep(one.folder))
        found = [run_statuses(one.folder, one.runs) for one in sweeps]
        for one, statuses in zip(sweeps, found, strict=True):
            remove_leftovers(one.folder)
            _keep(one, statuses)
        results = _do(
            [one for statuses in found for one in statuses if one.action != "nothing"], jobs, engine
        )
        for one, statuses in zip(sweeps, found, strict=True):
            show(one, statuses)
    failed = [result for result in results if result.status == "failed"]
    for result in failed:
        _say(f"{result.run_status.folder} failed: {result.message}")
    if failed:
        raise typer.Exit(FAILED)


def _do(todo: Sequence[RunStatus], jobs: int, engine: str) -> list[Result]:
    if not todo:
        return []
    room = job_slots([run_status.run.config for run_status in todo], jobs)
    _say(f"{len(todo)} runs, {len(room)} at once")
    with monitoring(console, len(todo), len(room)) as monitor:
        return run_all(todo, room, engine, monitor)


def show(one: Sweep, found: Sequence[RunStatus]) -> None:
    """Print what a sweep's runs came to, and where they are."""
    from deploy.sweep.results import results

    for table in results([run_status.folder for run_status in found]):
        console.print(table)
    _say(f"a page of it: fedkeel report {one.folder}")


def find(plan: str) -> list[Path]:
    """Return the files of a plan: of a preset, of the path, or of all presets for "all".

    Raises:
        ConfigError: there is neither.
    """
    known = {path.stem: path for path in sorted(PRESETS.glob("*.toml"))}
    if plan == ALL:
        return list(known.values())
    if plan in known:
        return [known[plan]]
    path = Path(plan)
    if path.exists():
        return [path]
    raise ConfigError(
        f'there is neither a file nor a preset called "{plan}"{did_you_mean(plan, known)}; the '
        f"presets are: {', '.join(known)}, {ALL}"
    )


def presets() -> Table:
    """List the presets: what each is about, and its number of runs."""
    told = (
        f"The files in {PRESETS} say what is published and what is our fill-in. --quick is a small "
        "version on digits, to see that it works: its numbers say nothing about the papers."
    )
    table = Table(box=SIMPLE_HEAD, caption=Text(told), caption_justify="left")
    for title in ("preset", "about"):
        table.add_column(title, overflow="fold")
    for title in ("runs", "--quick"):
        table.add_column(title, justify="right")
    for path in find(ALL):
        plan, small = read_plan(path), read_plan(path, quick=True)
        table.add_row(path.stem, plan.about, str(len(runs_of(plan))), str(len(runs_of(small))))
    return table


def _only_sweep(folder: Path) -> AbstractContextManager[object]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the sweep cannot be written to {folder}: {error}") from error
    taken = ConfigError(
        f"another sweep is at work in {folder}; wait for it, or give this one another --name"
    )
    return file_lock(folder / LOCK, taken)


def _keep(one: Sweep, found: Sequence[RunStatus]) -> None:
    """Write the plan, and the label of each run, so that the folder says what it is."""
    labels = {run_status.run.name: run_status.run.label for run_status in found}
    text = tomli_w.dumps({**one.plan.to_tables(), RUNS: labels})
    with atomic_write(one.folder / PLAN) as file:
        file.write(text.encode())
    actions = [run_status.action for run_status in found]
    counts = {
        "complete already": actions.count("nothing"),
        "to go on with": actions.count("resume"),
        "to do": actions.count("start") + actions.count("start over"),
    }
    said = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    _say(f"{one.plan.name}: {len(found)} runs, {said}")


def _say(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
