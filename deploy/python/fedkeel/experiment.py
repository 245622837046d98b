"""`run` and `compare`: the runs of the `fedkeel` command, from Python."""

import time
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from rich.console import Console

from common.config import RunConfig, flatten, parse
from common.errors import ConfigError, FedError, did_you_mean
from common.runs.records import read_records
from deploy.config_input import with_absolute_paths
from deploy.engines import ENGINES, REMOTE, Resources
from deploy.engines.runner import resources, run_experiment
from deploy.federation.superlink_client import SuperLinkClient
from fedkeel.run_result import RunResult, client_rows, round_row
from server_app.run_dir.run_dir import RunDir

EngineName: TypeAlias = Literal["inline", "simulation", "superlink"]


class RunFailedError(FedError):
    """A run ended before its last round; the message says why."""


def run(
    method: str,
    *,
    settings: Mapping[str, Any] | None = None,
    engine: EngineName = "inline",
    out: str | Path | None = None,
    name: str = "",
    resume: bool = False,
    workers: int = 0,
    client_gpus: float | None = None,
    superlink: SuperLinkClient | None = None,
    progress: bool = False,
) -> RunResult:
    """Run one method to its last round and return the result.

    Args:
        method: name of the method, as in `fedkeel.METHODS`.
        settings: run-config keys, flat ({"data.alpha": 0.1}) or nested ({"data": {"alpha": 0.1}}).
        engine: "inline" trains in this process, "simulation" on Ray, "superlink" on real nodes.
        out: directory of the run directories; None means the setting "out".
        name: name of the run directory; "" means the method and the time.
        resume: continue the run `name` from its newest checkpoint.
        workers: number of clients that train at the same time; 0 means as many as fit.
        client_gpus: share of a GPU per client; None means an equal share of the GPUs.
        superlink: the SuperLink for the engine "superlink".
        progress: True prints the progress of the run to stderr.

    Raises:
        ConfigError: a setting is wrong, or the run directory holds another run.
        CheckpointError: `resume` finds no usable checkpoint.
        RunFailedError: the run ended before its last round.
    """
    if resume and not name:
        raise ConfigError("resume=True needs the name of the run: run(..., name=..., resume=True)")
    config = _config(method, settings, out, name, resume)
    if not name and not config.name:
        config = _config(method, settings, out, _free_name(Path(config.out), method), resume)
    given = _resources(config, engine, workers, client_gpus, superlink)
    return _carry_out(config, engine, given, progress)


def compare(
    methods: Iterable[str],
    *,
    settings: Mapping[str, Any] | None = None,
    engine: EngineName = "inline",
    out: str | Path | None = None,
    name: str = "",
    resume: bool = False,
    workers: int = 0,
    client_gpus: float | None = None,
    superlink: SuperLinkClient | None = None,
    progress: bool = False,
) -> dict[str, RunResult]:
    """Run several methods on the same data, split, cohorts and first weights.

    The arguments are those of `run`, except that `name` is the directory of the comparison. The
    run of each method is a directory in it. `resume` also starts methods that had not begun.

    Returns:
        The result of each method by its name.

    Raises:
        ConfigError: a setting is wrong, or a run directory holds another run.
        CheckpointError: `resume` finds no usable checkpoint.
        RunFailedError: a run ended before its last round; the later methods do not start.
    """
    if resume and not name:
        raise ConfigError("resume=True needs the name of the comparison: compare(..., name=...)")
    if isinstance(methods, str):
        raise ConfigError(f'compare takes a list of methods, such as ["{methods}"]')
    chosen = list(dict.fromkeys(methods))
    if not chosen:
        raise ConfigError("compare needs at least one method")
    base = Path(_config(chosen[0], settings, out, name, False).out)
    folder = base / (name or _free_name(base, "compare"))
    configs = [
        _config(method, settings, folder, method, resume and (folder / method).exists())
        for method in chosen
    ]
    for config in configs:
        RunDir.claim(config)  # all of them before the first one starts
    given = _resources(configs[0], engine, workers, client_gpus, superlink)
    return {config.method: _carry_out(config, engine, given, progress) for config in configs}


def _config(
    method: str,
    settings: Mapping[str, Any] | None,
    out: str | Path | None,
    name: str,
    resume: bool,
) -> RunConfig:
    if not isinstance(settings, Mapping | None):
        raise ConfigError(f"settings must be a mapping of run-config keys, not {settings!r}")
    flat = {key: _plain(value) for key, value in flatten(settings or {}).items()}
    own: dict[str, Any] = {"method": method, "resume": resume}
    if clash := [key for key in own if flat.get(key, own[key]) != own[key]]:
        raise ConfigError(
            f"the settings say {clash[0]} = {flat[clash[0]]!r}, the argument says "
            f"{own[clash[0]]!r}; remove {clash[0]} from the settings"
        )
    own |= {"out": str(out)} if out is not None else {}
    own |= {"name": name} if name else {}
    return with_absolute_paths(parse({**flat, **own}))


def _plain(value: Any) -> Any:
    """Return a scalar of numpy as the Python number that a config file can hold."""
    return value.item() if isinstance(value, np.generic) else value


def _free_name(out: Path, prefix: str) -> str:
    stamped = f"{prefix}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stamped if number == 1 else f"{stamped}-{number}" for number in count(1))
    return next(name for name in names if not (out / name).exists())


def _resources(
    config: RunConfig,
    engine: str,
    workers: int,
    client_gpus: float | None,
    superlink: SuperLinkClient | None,
) -> Resources:
    if engine not in ENGINES:
        raise ConfigError(
            f'there is no engine "{engine}"{did_you_mean(str(engine), ENGINES)}; '
            f"use one of {', '.join(ENGINES)}"
        )
    if engine not in REMOTE:
        return resources(config, workers, client_gpus)
    if superlink is None:
        raise ConfigError(f'the engine "{engine}" needs superlink=SuperLinkClient(address, ca)')
    return Resources(0, link=superlink)


def _carry_out(config: RunConfig, engine: str, given: Resources, progress: bool) -> RunResult:
    console = Console(stderr=True, quiet=not progress, highlight=False)
    outcome = run_experiment(config, ENGINES[engine], given, console, config.method)
    run_dir = Path(config.out) / config.name
    if outcome.status != "completed":
        raise RunFailedError(f"{config.method} {outcome.status}: {outcome.message} ({run_dir})")
    records = read_records(run_dir)
    final = records[-1].evaluation if records else None
    return RunResult(
        config=config,
        run_dir=run_dir,
        outcome=outcome,
        rounds=tuple(map(round_row, records)),
        clients=tuple(row for record in records for row in client_rows(record)),
        fairness=final.fairness if final else None,
    )
