"""The commands that run experiments and show their results."""

import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from common.config import GROUPS, RunConfig
from common.errors import ConfigError, did_you_mean
from common.methods import METHODS
from common.settings import Range, Settings, key_of
from deploy.cli import federation
from deploy.cli.run_methods import run_methods
from deploy.config_input import read_pair, read_targets, run_config, user_settings
from deploy.federation.superlink_client import SuperLinkClient
from deploy.sweep import command as sweeps
from deploy.sweep.axes import crossed

console = Console(highlight=False)

File = Annotated[Path | None, typer.Option("--config", help="A TOML file of run-config keys.")]
Pairs = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="A run-config key. See: fedkeel settings."),
]
EngineName = Annotated[
    str, typer.Option("--engine", help="simulation (Flower's, on Ray), inline, or superlink.")
]
Name = Annotated[
    str, typer.Option("--name", help="Name of the run directory. Default: method and time.")
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Clients that train at a time. 0: one per core.")
]
Goals = Annotated[
    list[str],
    typer.Option(
        "--target",
        metavar="[DATA=]ACCURACY",
        help="Count the rounds to this accuracy, such as 0.66 or cifar10=0.66. Default: the final "
        "accuracy of the reference.",
    ),
]
Events = Annotated[
    Path | None, typer.Option("--tensorboard", help="Folder for event files of TensorBoard.")
]
Gpus = Annotated[
    float | None, typer.Option("--client-gpus", min=0, help="Share of a GPU per client.")
]


def add_to(cli: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (run, compare, report, doctor, settings, watch, sweeps.sweep):
        cli.command()(command)


def run(
    method: Annotated[str | None, typer.Argument(help=f"One of {', '.join(METHODS)}.")] = None,
    config: File = None,
    pairs: Pairs = [],  # noqa: B006 - typer's way
    engine: EngineName = "simulation",
    name: Name = "",
    workers: Workers = 0,
    client_gpus: Gpus = None,
    superlink: federation.Address = federation.SUPERLINK,
    ca: federation.Authority = federation.CA,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint of --name.")
    ] = False,
    from_round: Annotated[
        int,
        typer.Option(
            "--from-round",
            metavar="ROUND",
            min=0,
            help="With --resume: continue from the checkpoint of this round. 0: the newest.",
        ),
    ] = 0,
) -> None:
    """Run one method and end with its summary."""
    if from_round and not resume:
        raise typer.BadParameter("--from-round needs --resume")
    own: dict[str, Any] = {"resume": True} if resume else {}
    own |= {"method": method} if method else {}
    own |= {"name": name} if name else {}
    other = dict(map(read_pair, pairs)).get("method", method)
    if method and other != method:
        raise typer.BadParameter(f"the method is given twice: {method}, and {other} by --set")
    chosen = run_config(config, pairs, own)
    if not chosen.name:
        if chosen.resume:
            raise typer.BadParameter("--resume needs the --name of the run to go on with")
        stamped = f"{chosen.method}-{time.strftime('%Y%m%d-%H%M%S')}"
        chosen = run_config(config, pairs, {**own, "name": stamped})
    folder = Path(chosen.out) / chosen.name
    if from_round:
        from server_app.run_dir.run_dir import rewind_run

        rewind_run(folder, from_round)
    run_methods([chosen], engine, workers, client_gpus, SuperLinkClient(superlink, ca), folder)


def compare(
    methods: Annotated[list[str], typer.Argument(help=f"Some of {', '.join(METHODS)}.")],
    config: File = None,
    pairs: Pairs = [],  # noqa: B006
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="simulation (Flower's, on Ray), inline, or superlink.",
            show_default="simulation; inline with --seeds or --vary",
        ),
    ] = None,
    name: Name = "",
    workers: Workers = 0,
    client_gpus: Gpus = None,
    superlink: federation.Address = federation.SUPERLINK,
    ca: federation.Authority = federation.CA,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the comparison of --name.")
    ] = False,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="SEED,SEED", help="Repeat all runs with each seed.")
    ] = "",
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="KEY=VALUE,VALUE",
            help="Repeat all runs with each value. Several options are crossed.",
        ),
    ] = [],  # noqa: B006
    jobs: sweeps.Jobs = 0,
) -> None:
    """Run several methods on the same data, split, cohorts and first weights."""
    methods = list(dict.fromkeys(methods))
    base = run_config(config, pairs, {})
    if resume and not (name or base.name):
        raise typer.BadParameter("--resume needs the --name of the comparison to go on with")
    axes = [*([f"seed={seeds}"] if seeds else []), f"method={','.join(methods)}", *vary]
    if len(axes) > 1:
        if workers or client_gpus:
            raise typer.BadParameter("with --seeds or --vary it is --jobs that says how many")
        stamped = f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
        plan = crossed(name or base.name or stamped, user_settings(config, pairs), axes)
        sweeps.run_plans([plan], Path(base.out), "", jobs, engine or "inline")
        return
    if jobs:
        raise typer.BadParameter("--jobs is for --seeds and --vary; here it is --workers")
    folder = Path(base.out) / (name or base.name or f"compare-{time.strftime('%Y%m%d-%H%M%S')}")
    own: list[dict[str, Any]] = [
        {"method": method, "name": method, "out": str(folder)} for method in methods
    ]
    for each in own:  # those that had not begun when the comparison was stopped start now
        each["resume"] = resume and (folder / str(each["name"])).exists()
    configs = [run_config(config, pairs, each) for each in own]
    chosen = engine or "simulation"
    run_methods(configs, chosen, workers, client_gpus, SuperLinkClient(superlink, ca), folder)


def report(
    places: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Run directories, or folders of them.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="File of the page. Its numbers go into the same folder.")
    ] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for the figures, as PNG and SVG.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Title of the page.")] = "",
    target: Goals = [],  # noqa: B006
    tensorboard: Events = None,
) -> None:
    """Make one page of figures and tables of some runs."""
    from deploy.report.report_files import write_report
    from deploy.report.tensorboard_log import TensorBoardLog

    events = TensorBoardLog(tensorboard) if tensorboard else None  # said now where it cannot be
    targets = read_targets(target)
    paths, left_out = write_report(places, out, figures, title, targets, events)
    for folder, why in left_out.items():
        console.print(f"{folder} is left out: {why}", markup=False, soft_wrap=True)
    for path in paths:
        console.print(str(path), markup=False, soft_wrap=True)


def doctor() -> None:
    """Say in plain words what this machine can do."""
    from deploy.preflight.doctor import exit_code, machine_findings, print_findings

    findings = machine_findings()
    print_findings(console, findings)
    raise typer.Exit(exit_code(findings))


def settings(
    group: Annotated[
        str, typer.Argument(help="Show one group only: a method, or data, train, server.")
    ] = "",
) -> None:
    """List run-config keys, their defaults, meanings and ranges."""
    groups: dict[str, type[Settings]] = {"": RunConfig, **GROUPS, **METHODS}
    if group not in groups:
        raise ConfigError(f'no settings are called "{group}"{did_you_mean(group, list(groups))}')
    groups = {group: groups[group]} if group else groups
    table = Table(box=None, pad_edge=False)
    for title in ("key", "default", "meaning"):
        table.add_column(title, overflow="fold")
    for group, kind in groups.items():
        for item in fields(kind):
            if "range" not in item.metadata:
                continue
            key = f"{group}.{key_of(item.name)}" if group else key_of(item.name)
            limits = item.metadata["range"]
            extra = f" ({limits})" if limits != Range() else ""
            shown = str(item.default).lower() if isinstance(item.default, bool) else item.default
            table.add_row(key, str(shown), item.metadata["help"] + extra)
    console.print(table, markup=False)


def watch(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...", help="Run directories, or folders of them. They may be empty."
        ),
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1. 0: a free port.")
    ] = 0,
    target: Goals = [],  # noqa: B006
    tensorboard: Events = None,
) -> None:
    """Serve the report on this machine while runs go on, or before they begin."""
    from deploy.report.html.page import render
    from deploy.report.live_server import LOOK_SECONDS, RunWatcher, serving
    from deploy.report.tensorboard_log import TensorBoardLog

    events = TensorBoardLog(tensorboard) if tensorboard else None
    targets = read_targets(target)
    watcher = RunWatcher(
        places,
        lambda runs, left_out: render(runs, left_out=left_out, targets=targets, live=True),
        events,
    )
    for place in places:
        if not place.is_dir():
            console.print(f"waiting for {place}", markup=False, soft_wrap=True)
    with suppress(KeyboardInterrupt), serving(watcher, port) as address:
        said = f"{address} shows {', '.join(map(str, places))}; Ctrl-C ends it, and no run"
        console.print(said, markup=False, soft_wrap=True)
        while not watcher.error:
            time.sleep(LOOK_SECONDS)
    if watcher.error:
        raise watcher.error
