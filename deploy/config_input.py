"""What a person gave on the command line, as a run config."""

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.config import RunConfig, flatten, parse
from common.data.sources import CLASSES, FOLDER, OWN
from common.errors import ConfigError

LARGEST_FILE = 2**20  # bytes of a config file; /dev/zero has no end


def read_file(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file, flat: [train] lr = 0.1 is "train.lr".

    Raises:
        ConfigError: the file is missing or is not TOML.
    """
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ConfigError(f"{path} has more than {LARGEST_FILE} bytes; that is no config")
        return flatten(tomllib.loads(text.decode("utf-8-sig")))
    except OSError as error:
        raise ConfigError(f"the config file cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # tomllib's own error is a ValueError
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def read_pair(text: str) -> tuple[str, Any]:
    """Return ("train.lr", 0.1) for "train.lr=0.1"; a value that is not TOML is a text.

    Raises:
        ConfigError: there is no "=".
    """
    key, equals, raw = text.partition("=")
    if not equals:
        raise ConfigError(f'--set takes key=value, got "{text}"')
    for read in (_as_toml, float, str.strip):
        with suppress(ValueError, RecursionError):
            return key.strip(), read(raw)
    raise AssertionError("any text can be stripped")


def read_targets(texts: Sequence[str]) -> dict[str, float]:
    """Return {"cifar10": 0.66, "": 0.5} for "cifar10=0.66" and "0.5".

    Raises:
        ConfigError: one of them is no accuracy in (0, 1].
    """
    targets = {}
    for text in texts:
        data, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 0 < value <= 1:
            raise ConfigError(
                f'--target takes an accuracy above 0 and up to 1, or DATA=ACCURACY, got "{text}"'
            )
        targets[data.strip()] = value
    return targets


def _as_toml(raw: str) -> Any:
    return tomllib.loads(f"value = {raw}")["value"]


def run_config(file: Path | None, pairs: Sequence[str], own: Mapping[str, Any]) -> RunConfig:
    """Return the run config: the file's keys, then --set, then the command's own.

    Raises:
        ConfigError: everything that is wrong, at once.
    """
    return with_absolute_paths(parse({**user_settings(file, pairs), **own}))


def user_settings(file: Path | None, pairs: Sequence[str]) -> dict[str, Any]:
    """Return the keys that were given, flat: the file's, then --set.

    Raises:
        ConfigError: the file cannot be read, or a pair has no "=".
    """
    return {**(read_file(file) if file else {}), **dict(map(read_pair, pairs))}


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the config with whole paths, good wherever a process is started."""
    data = config.data
    root, name = data.root and _absolute(data.root), data.name
    if name.startswith(FOLDER):
        name = FOLDER + _absolute(name.removeprefix(FOLDER))
    return replace(config, out=_absolute(config.out), data=replace(data, root=root, name=name))


def _absolute(path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute())
    except (OSError, RuntimeError) as error:  # the current folder is gone; no such user
        raise ConfigError(f"{path or 'the current folder'} cannot be found: {error}") from error


def run_overview(config: RunConfig, methods: Sequence[str], engine: str) -> list[str]:
    """Return the first lines of the output: data, clients, methods, model, engine.

    Args:
        config: of the run, or of one of several runs that differ only in the method.
        methods: names of the methods, in order.
        engine: the engine, and where it runs.
    """
    data = config.data
    parts = [_data_name(config)]
    if classes := CLASSES.get(data.name, data.class_names):
        parts.append(f"{len(classes)} classes")
    if data.name != OWN:
        parts.append(f"partition {_partition(config)}")
    rounds = f"{config.rounds} round{'s' if config.rounds > 1 else ''}"
    rows = {
        "data": ", ".join(parts),
        "clients": f"{config.clients}, {config.cohort_size} per round",
        "method" if len(methods) == 1 else "methods": ", ".join(methods),
        "model": f"{config.model}, {rounds}, seed {config.seed}",
        "engine": engine,
    }
    return [f"{title:8} {text}" for title, text in rows.items()]


def describe_data(config: RunConfig) -> str:
    """Return the task of a run in one line: data, clients, partition, model, cohort."""
    if config.data.name == OWN:
        return f"own pictures, {config.clients} clients, {config.model}"
    cohort = f"{config.cohort_size} client{'s' if config.cohort_size > 1 else ''} a round"
    return (
        f"{_data_name(config)}, {config.clients} clients, {_partition(config)}, {config.model}, "
        f"{cohort}"
    )


def _data_name(config: RunConfig) -> str:
    """Return the name of the data. Of a folder's path, only the last part is kept."""
    name = config.data.name
    if name == OWN:
        return "own pictures"
    return FOLDER + Path(name.removeprefix(FOLDER)).name if name.startswith(FOLDER) else name


def _partition(config: RunConfig) -> str:
    data = config.data
    alpha = f" alpha {data.alpha:g}" if data.partition.startswith("dirichlet") else ""
    return f"{data.partition}{alpha}"
