"""Run one or several methods on the same task and show their results."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from common.config import RunConfig
from common.io.files import private_files
from common.io.text import LONGEST_LINE, single_line
from deploy.config_input import describe_data, run_overview
from deploy.federation.superlink_client import SuperLinkClient

FAILED = 1
console = Console(highlight=False)


def run_methods(
    configs: Sequence[RunConfig],
    engine: str,
    workers: int,
    client_gpus: float | None,
    link: SuperLinkClient,
    folder: Path,
) -> None:
    """Run the configs one after another, then print and plot their results.

    Args:
        configs: they differ only in the method.
        engine: name of the engine.
        workers: clients that train at the same time. 0 means one per core.
        client_gpus: share of a GPU for each client. None means that they share all GPUs equally.
        link: connection to the SuperLink, for the engine superlink.
        folder: directory for the plots and the summary.

    Raises:
        ConfigError, CheckpointError: a run cannot start. Then none has started.
        typer.Exit: a run failed.
    """
    from deploy.engines import ENGINES, REMOTE, Resources, ignored_variable_warning
    from deploy.engines.runner import resources, run_experiment
    from server_app.run_dir.run_dir import RunDir

    if engine not in ENGINES:
        raise typer.BadParameter(f'there is no engine "{engine}": {" or ".join(ENGINES)}')
    far = engine in REMOTE
    given = Resources(0, link=link) if far else resources(configs[0], workers, client_gpus)
    for config in configs:
        RunDir.claim(config)  # check all of them before the first one starts
    place = f"nodes of {link.address}" if far else _workers(given.workers)
    methods = [config.method for config in configs]
    for line in run_overview(configs[0], methods, f"{engine}, {place}"):
        console.print(line, markup=False, soft_wrap=True)
    if warning := ignored_variable_warning(engine):
        console.print(warning, markup=False, soft_wrap=True)
    failed = []
    for config in configs:
        outcome = run_experiment(config, ENGINES[engine], given, console, config.method)
        if outcome.status != "completed":
            failed.append(config.method)
            line = f"{config.method} {outcome.status}: {outcome.message}"
            console.print(single_line(line, LONGEST_LINE), markup=False, soft_wrap=True)
    done = {c.method: Path(c.out) / c.name for c in configs if c.method not in failed}
    if done:
        with private_files(group=configs[0].server.group_access):
            _show_results(done, folder, f"{describe_data(configs[0])}, seed {configs[0].seed}")
    if failed:
        raise typer.Exit(FAILED)


def _show_results(run_dirs: dict[str, Path], folder: Path, data: str) -> None:
    from common.runs.conformal_results import CONFORMAL
    from deploy.report.figures import plot_runs
    from deploy.report.run_data import load_runs
    from deploy.report.run_summary import summary_table, write_summary

    runs = load_runs(run_dirs)
    console.print(summary_table(runs, data))
    try:
        paths = [*plot_runs(runs, folder, data), write_summary(runs, folder, data)]
    except OSError as error:
        console.print(f"the plots cannot be written: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(FAILED) from error
    sets = [path / CONFORMAL for path in run_dirs.values() if (path / CONFORMAL).exists()]
    for path in [*paths, *sets]:
        console.print(str(path), markup=False, soft_wrap=True)
    console.print(f"report page: fedkeel report {folder}", markup=False, soft_wrap=True)


def _workers(count: int) -> str:
    return f"{count} client{'s' if count != 1 else ''} at a time"
