"""The run config: parsed once, at the border, into frozen dataclasses.

The defaults live here and in the methods' own fields; pyproject's [tool.flwr.app.config] is
their copy, which Flower needs and a test holds equal. Flower hands the config over as one flat
table with dotted keys ("train.lr"), and so does everything else here.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from common.data.image_folder.folder_options import FolderOptions
from common.data.partition import PARTITIONS, PartitionOptions
from common.data.sources import FOLDER, OWN, SOURCES
from common.data.splits import MIN_TEST
from common.errors import ConfigError, did_you_mean
from common.methods import METHODS, Method
from common.settings import Settings, key_of, setting

Flat = Mapping[str, Any]
LONGEST_NAME = 100
# A copy of the names in common.models, whose import loads torch.
MODEL_NAMES = ("mlp", "cnn", "vgg11", "resnet8", "resnet18")


@dataclass(frozen=True)
class DataConfig(Settings):
    """Which data, and how they are dealt to the clients."""

    name: str = setting(
        "digits",
        "digits, fashion-mnist, cifar10, cifar100, folder:PATH (train/CLASS, test/CLASS), or own: "
        "each client's own folder",
    )
    classes: str = setting(
        "", "the federation's classes for own pictures, in order, separated by commas"
    )
    channels: int = setting(3, "channels of own pictures: 1 (grey) or 3 (RGB)", choices=(1, 3))
    max_bad: float = setting(
        FolderOptions.max_bad, "largest share of unusable files in a folder", low=0, high=1
    )
    root: str = setting(
        "", "where data sets lie or are downloaded to; empty: $FEDKEEL_DATA or ./data"
    )
    download: bool = setting(True, "fetch a missing data set where there is a network")
    image_size: int = setting(
        0,
        "side of the images of a folder; 0 keeps or chooses it, which own pictures do not allow",
        low=0,
        high=4096,
    )
    partition: str = setting(
        "dirichlet-client", "how samples are dealt to clients", choices=tuple(PARTITIONS)
    )
    alpha: float = setting(
        PartitionOptions.alpha, "Dirichlet concentration; small means skewed", low=0, open_low=True
    )
    shards_per_client: int = setting(
        PartitionOptions.shards_per_client, "for the partition shards", low=1
    )
    min_size: int = setting(
        0, "fewest samples of a client, for the partition dirichlet; 0 chooses it", low=0
    )
    equal_slices: bool = setting(
        PartitionOptions.equal_slices,
        "re-cut a dirichlet split into equal slices, as the published FedPVR code does",
    )
    test_fraction: float = setting(
        0.2, "share of a client's samples kept for its test", low=0, high=1, open_high=True
    )
    calibration_fraction: float = setting(
        0.0, "share of a client's samples kept for calibration", low=0, high=1, open_high=True
    )
    min_test: int = setting(
        MIN_TEST, "fewest test samples of a client, at most half of what it has", low=0
    )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The federation's class list; empty if the data say it themselves."""
        return tuple(map(str.strip, self.classes.split(","))) if self.classes else ()


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Local training."""

    epochs: int = setting(1, "passes over a client's training data per round", low=1)
    batch_size: int = setting(32, "samples per step", low=1)
    lr: float = setting(0.1, "local learning rate of round 1", low=0, open_low=True)
    lr_decay: float = setting(
        0.999, "factor on the local learning rate per round", low=0, high=1, open_low=True
    )
    momentum: float = setting(0.0, "heavy-ball momentum", low=0, high=1, open_high=True)
    weight_decay: float = setting(0.0, "L2 penalty", low=0)
    augment: bool = setting(False, "random crop and, where it makes sense, flip")
    drop_last: bool = setting(False, "leave out the last, incomplete batch of an epoch")
    device: str = setting("auto", "where clients train", choices=("auto", "cpu", "cuda"))
    threads: int = setting(1, "torch threads of a client", low=1, high=256)
    precision: str = setting(
        "float32",
        "of convolutions and products while training; weights stay float32",
        choices=("float32", "bfloat16"),
    )
    cuda_graph: bool = setting(
        False, "issue a step to a GPU as one CUDA graph; clients on a CPU train as they do without"
    )


@dataclass(frozen=True)
class ServerConfig(Settings):
    """Rounds on the server."""

    lr: float = setting(1.0, "server learning rate: w <- w - lr * direction", low=0, open_low=True)
    quorum: int = setting(0, "clients that must be ready for a round; 0: all of `clients`", low=0)
    over_selection: int = setting(
        0, "clients asked beyond the cohort; the round uses the first replies", low=0
    )
    min_replies: int = setting(1, "fewer usable replies make the round void", low=1)
    max_void_rounds: int = setting(3, "void rounds in a row after which the run stops", low=1)
    retries: int = setting(
        2, "times a round asks a client again whose process died or that went offline", low=0
    )
    patience: float = setting(
        60.0, "seconds in which a client that went offline may come back to its round", low=0
    )
    start_timeout: float = setting(120.0, "seconds to wait for the quorum before a round", low=0)
    round_timeout: float = setting(
        3600.0, "seconds to wait for a round's replies", low=0, open_low=True
    )
    checkpoint_every: int = setting(5, "rounds between checkpoints; 0 keeps none", low=0)
    keep_checkpoints: int = setting(2, "newest checkpoints kept", low=1)
    on_disk: bool = setting(
        False, "keep what the method remembers of clients in files instead of in memory"
    )


@dataclass(frozen=True)
class DiagnosticsConfig(Settings):
    """What is looked at beside the model; it changes no result."""

    every: int = setting(
        0, "rounds between diagnostics of the clients' updates; 0: none at all", low=0
    )
    probe: int = setting(
        256, "test samples on which the layers of the clients are compared (CKA); 0: none", low=0
    )
    gradients: bool = setting(
        False, "ask clients for two gradients over all their samples: the terms of FedPCD's theorem"
    )


@dataclass(frozen=True)
class ConformalConfig(Settings):
    """Conformal prediction sets of the final model, where clients keep calibration samples."""

    miscoverage: float = setting(
        0.1, "share of samples whose set may lack the true class", low=0, high=1, open_low=True,
        open_high=True,
    )  # fmt: skip
    temperature: float = setting(1.0, "divides the logits", low=0, open_low=True)
    randomised: bool = setting(True, "randomise the scores of APS and RAPS: smaller sets")
    k_reg: int = setting(1, "RAPS: classes of a set that cost nothing", low=1)
    lam: float = setting(0.1, "RAPS: what each further class costs", low=0, high=100)
    bins: int = setting(
        2000, "bins of the histogram in which a client tells its scores", low=10, high=100_000
    )


@dataclass(frozen=True)
class RunConfig(Settings):
    """Everything that a run depends on."""

    method: str = setting("fedpcd", "the method", choices=tuple(METHODS))
    model: str = setting("mlp", "the network", choices=MODEL_NAMES)
    rounds: int = setting(30, "rounds of training", low=1)
    clients: int = setting(20, "clients of the federation, N", low=1, high=100_000)
    names: str = setting(
        "", "names of the clients that are expected, separated by commas; filled in by superlink"
    )
    participation: float = setting(
        0.25, "share of the clients that train in a round", low=0, high=1, open_low=True
    )
    eval_every: int = setting(
        5, "rounds between evaluations on all clients; 0: the end only", low=0
    )
    seed: int = setting(1, "address of every random draw", low=0)
    name: str = setting("", "name of the run; empty: method and time")
    out: str = setting("runs", "folder that holds the runs")
    resume: bool = setting(False, "go on from the newest checkpoint of the run of this name")
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
        """Clients asked in a round: int(participation * N), at least 1."""
        return cohort_size(self.participation, self.clients)

    @property
    def quorum(self) -> int:
        """Clients that must be ready for a round."""
        return self.server.quorum or self.clients

    @property
    def expected_clients(self) -> tuple[str, ...]:
        """Names of the clients that should come, as far as they are told."""
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

    def fingerprint(self) -> str:
        """Return a digest of what the results depend on (not of names and places).

        A setting that came later counts only where it differs from its default, so that runs
        begun before there was one can go on.
        """
        flat, plain = self.to_flat(), RunConfig().to_flat()
        left_out = {*NOT_IN_RESULTS, *(key for key in CAME_LATER if flat[key] == plain[key])}
        others = METHODS.keys() - {self.method}
        used = {key: flat[key] for key in flat if key.partition(".")[0] not in others}
        text = json.dumps({key: used[key] for key in used.keys() - left_out}, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


GROUPS: Mapping[str, type[Settings]] = {
    "data": DataConfig,
    "train": TrainConfig,
    "server": ServerConfig,
    "diagnostics": DiagnosticsConfig,
    "conformal": ConformalConfig,
}
NOT_IN_RESULTS = (
    "rounds", "names", "name", "out", "resume", "eval-every", "data.root", "data.download",
    "train.device", "train.cuda-graph", "server.quorum", "server.retries", "server.patience",
    "server.start-timeout", "server.round-timeout", "server.max-void-rounds",
    "server.checkpoint-every", "server.keep-checkpoints", "server.on-disk",
    *(f"diagnostics.{key}" for key in DiagnosticsConfig().to_table()),
    *(f"conformal.{key}" for key in ConformalConfig().to_table()),
)  # fmt: skip
CAME_LATER = ("train.precision",)  # than checkpoints; their default does what was done without


def cohort_size(fraction: float, clients: int) -> int:
    """Return how many of the clients a round asks: int(fraction * N) as in the studies, >= 1.

    A hair is added first, since 0.29 * 100 is 28.999... as a float.
    """
    return max(1, int(fraction * clients + 1e-9))


def parse(flat: Flat) -> RunConfig:
    """Return the run config, or tell every problem at once.

    Raises:
        ConfigError: unknown keys (with the nearest known), wrong types, values out of range, and
            combinations that cannot work.
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
    train = config.train
    problems += config.chosen.config_problems(
        lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay
    )
    if train.cuda_graph and train.device == "cpu":
        problems.append("train.cuda-graph needs a GPU, but train.device is cpu")
    if config.server.min_replies > config.cohort_size:
        problems.append(
            f"server.min-replies is {config.server.min_replies}, but a round asks only "
            f"{config.cohort_size} of {config.clients} clients (participation "
            f"{config.participation:g})"
        )
    if config.data.test_fraction + config.data.calibration_fraction >= 1:
        problems.append(
            "data.test-fraction and data.calibration-fraction leave nothing to train on"
        )
    if config.server.quorum > config.clients:
        problems.append(
            f"server.quorum is {config.server.quorum}, but the federation has {config.clients} "
            "clients"
        )
    if config.data.name == OWN:
        problems += _objections_to_own(config.data)
    elif not config.data.name.startswith(FOLDER) and config.data.name not in SOURCES:
        known_sources = [*SOURCES, f"{FOLDER}PATH", OWN]
        hint = did_you_mean(config.data.name, known_sources)
        there_are = ", ".join(known_sources)
        problems.append(f'no data set is named "{config.data.name}"{hint}; there are: {there_are}')
    if not config.local_lr(config.rounds) > 0:
        problems.append(
            f"train.lr {config.train.lr:g} with train.lr-decay {config.train.lr_decay:g} is 0 "
            f"before round {config.rounds}; let it decay more slowly"
        )
    if config.name and not _plain(config.name):
        problems.append(
            f"name must be the name of a folder, of at most {LONGEST_NAME} bytes and without / or "
            f"\\, not {config.name!r}; the run goes to out/name"
        )
    if problems:
        raise ConfigError("\n  ".join(["the run config cannot be used:", *problems]))
    return config


def _objections_to_own(data: DataConfig) -> list[str]:
    """Return what clients with pictures of their own must be told and are not."""
    problems = []
    names = data.class_names
    if len(names) < 2 or len(set(names)) < len(names) or "" in names:
        problems.append(
            f'data.name="{OWN}" needs data.classes, at least two different names such as '
            f'"cat,dog", not "{data.classes}"'
        )
    if not data.image_size:
        problems.append(f'data.name="{OWN}" needs data.image-size, the side that all clients use')
    return problems


def _plain(name: str) -> bool:
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
