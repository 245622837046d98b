"""The run config: parsed once into frozen dataclasses.

The defaults are declared here, in `config_groups` and in the methods. pyproject's
[tool.flwr.app.config] is a copy that Flower needs, and a test compares both. Flower passes the
config as one flat table with dotted keys ("train.lr"), and so do the functions below.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from common.config_groups import (
    ConformalConfig,
    DataConfig,
    DiagnosticsConfig,
    ServerConfig,
    TrainConfig,
)
from common.data.sources import FOLDER, OWN, SOURCES
from common.errors import ConfigError, did_you_mean
from common.methods import METHODS, Method
from common.settings import Settings, key_of, setting

Flat = Mapping[str, Any]
LONGEST_NAME = 100
# A copy of the names in common.models, whose import loads torch.
MODEL_NAMES = ("mlp", "cnn", "vgg11", "resnet8", "resnet18")


@dataclass(frozen=True)
class RunConfig(Settings):
    """All settings of a run."""

    method: str = setting("fedpcd", "the method", choices=tuple(METHODS))
    model: str = setting("mlp", "the network", choices=MODEL_NAMES)
    rounds: int = setting(30, "rounds of training", low=1)
    clients: int = setting(20, "clients of the federation, N", low=1, high=100_000)
    names: str = setting(
        "", "names of the expected clients, separated by commas. The engine superlink fills them in"
    )
    participation: float = setting(
        0.25, "share of the clients that train in a round", low=0, high=1, open_low=True
    )
    eval_every: int = setting(
        5, "rounds between evaluations on all clients. 0: after the last round only", low=0
    )
    seed: int = setting(1, "seed of every random draw", low=0)
    name: str = setting("", "name of the run. Empty: method and time")
    out: str = setting("runs", "folder of the run directories")
    resume: bool = setting(False, "continue the run of this name from its newest checkpoint")
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    conformal: ConformalConfig = field(default_factory=ConformalConfig)
    methods: Mapping[str, Method[Any]] = field(
        default_factory=lambda: {name: method() for name, method in METHODS.items()}
    )

    @property
    def chosen(self) -> Method[Any]:
        """The method, with its settings."""
        return self.methods[self.method]

    @property
    def cohort_size(self) -> int:
        """Number of clients sampled in a round: int(participation * N), at least 1."""
        return cohort_size(self.participation, self.clients)

    @property
    def quorum(self) -> int:
        """Number of clients that must be ready for a round."""
        return self.server.quorum or self.clients

    @property
    def expected_clients(self) -> tuple[str, ...]:
        """Names of the expected clients, as far as they are known."""
        return tuple(name for name in map(str.strip, self.names.split(",")) if name)

    def local_lr(self, round: int) -> float:  # noqa: A002
        """Return the local learning rate of a round, lr * decay^(round - 1)."""
        return self.train.lr * self.train.lr_decay ** (round - 1)

    def is_diagnosed(self, round: int) -> bool:  # noqa: A002
        """Whether a round is one of those with diagnostics: every k-th, and the last."""
        every = self.diagnostics.every
        return bool(every) and (round % every == 0 or round == self.rounds)

    def to_flat(self) -> dict[str, Any]:
        """Return every key of the run config with its value, in order."""
        top = [item.name for item in fields(self) if "range" in item.metadata]
        flat = {key_of(name): getattr(self, name) for name in top}
        groups = {**{group: getattr(self, group) for group in GROUPS}, **self.methods}
        for name, group in groups.items():
            flat |= {f"{name}.{key}": value for key, value in group.to_table().items()}
        return flat


GROUPS: Mapping[str, type[Settings]] = {
    "data": DataConfig,
    "train": TrainConfig,
    "server": ServerConfig,
    "diagnostics": DiagnosticsConfig,
    "conformal": ConformalConfig,
}


def cohort_size(fraction: float, clients: int) -> int:
    """Return the number of clients sampled in a round: int(fraction * N), at least 1.

    Adds 1e-9 first, because 0.29 * 100 is 28.999... in floating point.
    """
    return max(1, int(fraction * clients + 1e-9))


def parse(flat: Flat) -> RunConfig:
    """Return the run config.

    Raises:
        ConfigError: lists every problem: unknown keys (with the nearest known key), wrong types,
            values out of range, and combinations that cannot work.
    """
    problems: list[str] = []
    known = list(RunConfig().to_flat())
    method = flat.get("method", RunConfig.method)
    tables: dict[str, dict[str, Any]] = {group: {} for group in ("", *GROUPS, *METHODS)}
    for name, value in flat.items():
        if name in known:
            group, _, key = name.rpartition(".")
            tables[group][key] = value
        else:
            problems.append(f'the run config has no key "{name}"{_nearest(name, known, method)}')
    methods = {
        name: kind.read(tables[name], f"{name}.", problems) for name, kind in METHODS.items()
    }
    top = RunConfig.read(tables[""], "", problems)
    groups: dict[str, Any] = {
        name: kind.read(tables[name], f"{name}.", problems) for name, kind in GROUPS.items()
    }
    config = replace(top, methods=methods, **groups)
    problems += [
        *_train_problems(config),
        *_server_problems(config),
        *_data_problems(config.data),
        *_run_problems(config),
    ]
    if problems:
        raise ConfigError("\n  ".join(["the run config cannot be used:", *problems]))
    return config


def _train_problems(config: RunConfig) -> Iterator[str]:
    train = config.train
    yield from config.chosen.config_problems(
        lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay
    )
    if train.cuda_graph and train.device == "cpu":
        yield "train.cuda-graph needs a GPU, but train.device is cpu"


def _server_problems(config: RunConfig) -> Iterator[str]:
    server = config.server
    if server.min_replies > config.cohort_size:
        yield (
            f"server.min-replies is {server.min_replies}, but a round asks only "
            f"{config.cohort_size} of {config.clients} clients (participation "
            f"{config.participation:g})"
        )
    if server.quorum > config.clients:
        yield (f"server.quorum is {server.quorum}, but the federation has {config.clients} clients")


def _data_problems(data: DataConfig) -> Iterator[str]:
    if data.test_fraction + data.calibration_fraction >= 1:
        yield "data.test-fraction and data.calibration-fraction leave nothing to train on"
    if data.name == OWN:
        yield from _own_data_problems(data)
    elif not data.name.startswith(FOLDER) and data.name not in SOURCES:
        known = [*SOURCES, f"{FOLDER}PATH", OWN]
        hint = did_you_mean(data.name, known)
        yield f'no data set is named "{data.name}"{hint}; there are: {", ".join(known)}'


def _own_data_problems(data: DataConfig) -> Iterator[str]:
    names = data.class_names
    if len(names) < 2 or len(set(names)) < len(names) or "" in names:
        yield (
            f'data.name="{OWN}" needs data.classes, at least two different names such as '
            f'"cat,dog", not "{data.classes}"'
        )
    if not data.image_size:
        yield f'data.name="{OWN}" needs data.image-size, the side that all clients use'


def _run_problems(config: RunConfig) -> Iterator[str]:
    if not config.local_lr(config.rounds) > 0:
        yield (
            f"train.lr {config.train.lr:g} with train.lr-decay {config.train.lr_decay:g} is 0 "
            f"before round {config.rounds}; let it decay more slowly"
        )
    if config.name and not _is_directory_name(config.name):
        yield (
            f"name must be the name of a folder, of at most {LONGEST_NAME} bytes and without / or "
            f"\\, not {config.name!r}; the run goes to out/name"
        )


def _is_directory_name(name: str) -> bool:
    fits = len(name.encode()) <= LONGEST_NAME
    return fits and not name.startswith(".") and not any(sign in name for sign in "/\\\n")


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into tables: {"train.lr": 1} -> {"train": {"lr": 1}}."""
    tables: dict[str, Any] = {}
    for name, value in flat.items():
        group, _, key = name.rpartition(".")
        (tables.setdefault(group, {}) if group else tables)[key] = value
    return tables


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into dotted keys; the inverse of `nested`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _nearest(name: str, known: list[str], method: Any) -> str:
    last = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    same.sort(key=lambda key: not key.startswith(f"{method}."))  # the run's own method first
    return f' (did you mean "{same[0]}"?)' if same else did_you_mean(name, known)
