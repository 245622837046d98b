"""The runs of a plan: their configs, and folder names made from what varies."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.config import LONGEST_NAME, RunConfig, parse
from common.errors import ConfigError
from common.methods import METHODS
from common.run_identity import sweep_identity
from deploy.config_input import with_absolute_paths
from deploy.sweep.plan import Plan, Point

WORDS: Mapping[Any, str] = {"*": "all", "": "none"}
UNUSED = {name: method() for name, method in METHODS.items()}
DIGEST = 8  # hex digits
MOST_TOLD = 20


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: its folder, below that of the sweep.
        label: of the variant it belongs to, "" without variants.
        config: what it runs with, but for its name and place.
    """

    name: str
    label: str
    config: RunConfig

    @property
    def identity(self) -> str:
        """A digest of everything but names and places."""
        return sweep_identity(self.config)

    @property
    def names(self) -> tuple[str, str]:
        """The names that it may have: its own, and the one for when another run has that."""
        return self.name, _marked(self.name, self.identity)

    def below(self, folder: Path, name: str = "") -> "PlannedRun":
        """Return the run with its place in the sweep's folder, under `name` if it is given."""
        its = name or self.name
        return replace(self, name=its, config=replace(self.config, name=its, out=str(folder)))


def runs_of(plan: Plan) -> list[PlannedRun]:
    """Return the plan's runs in order. Equal combinations give one run.

    Raises:
        ConfigError: what is wrong with the plan and with which combination, all at once.
    """
    problems: dict[str, list[str]] = {}
    found: dict[str, tuple[Point, RunConfig]] = {}
    for point in plan.points():
        try:
            config = _plain(with_absolute_paths(parse(point.flat)))
        except ConfigError as error:
            for problem in str(error).split("\n  ")[1:] or [str(error)]:
                problems.setdefault(problem, []).append(str(point))
            continue
        found.setdefault(sweep_identity(config), (point, config))
    lines = [*plan.problems, *(f"{what}: {_some(points)}" for what, points in problems.items())]
    if lines:
        more = [f"and {len(lines) - MOST_TOLD} more"] if len(lines) > MOST_TOLD else []
        head = f"the plan {plan.source or plan.name} cannot be used:"
        raise ConfigError("\n  ".join([head, *lines[:MOST_TOLD], *more]))
    keys = _short(plan.grid)
    names = [_name(point, config, keys) for point, config in found.values()]
    return [
        PlannedRun(name, point.variant.label, config)
        for name, (point, config) in zip(_unique(names, list(found)), found.values(), strict=True)
    ]


def _plain(config: RunConfig) -> RunConfig:
    """Return the config with the methods not in use at their defaults."""
    return replace(config, methods={**UNUSED, config.method: config.chosen})


def _some(points: Sequence[str]) -> str:
    more = f", and {len(points) - 1} more" if len(points) > 1 else ""
    return f"{points[0]}{more}"


def _name(point: Point, config: RunConfig, keys: Mapping[str, str]) -> str:
    """Return "fedpcd-history3-seed1": the method, the label, what the grid varies, the seed."""
    others = METHODS.keys() - {config.method}
    label = _slug(point.variant.label)
    parts = [config.method, label if label != config.method else ""]
    along = sorted(point.along.items(), key=lambda item: item[0] == "seed")
    parts += [
        _said(keys[key], value)
        for key, value in along
        if key != "method" and key.partition(".")[0] not in others
    ]
    name = "-".join(part for part in parts if part)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - DIGEST - 1]}-"


def _unique(names: Sequence[str], digests: Sequence[str]) -> Iterator[str]:
    """Yield the names. A name that is cut or taken ends with the run's digest."""
    taken: set[str] = set()
    for name, digest in zip(names, digests, strict=True):
        if name.endswith("-") or name in taken:
            name = _marked(name, digest)
        taken.add(name)
        yield name


def _marked(name: str, digest: str) -> str:
    """Return the name with the run's digest at its end, once."""
    end = f"-{digest[:DIGEST]}"
    return name if name.endswith(end) else f"{name[: LONGEST_NAME - len(end)].rstrip('-')}{end}"


def _short(keys: Iterable[str]) -> dict[str, str]:
    """Return what stands for each key: its last part, where no other key has the same."""
    last = {key: key.rpartition(".")[2] for key in keys}
    ends = list(last.values())
    return {k: e if ends.count(e) == 1 else k.replace(".", "-") for k, e in last.items()}


def _said(key: str, value: Any) -> str:
    """Return a value as a part of a name: history3, no-history, resnet8, block-all."""
    if isinstance(value, bool):
        return key if value else f"no-{key}"
    if isinstance(value, str):
        word = _slug(WORDS.get(value, value.rsplit("/", 1)[-1]))
        speaks = value not in WORDS and re.search("[a-z]", word)
        return word if speaks else f"{key}-{word}"
    return f"{key}{value:g}" if isinstance(value, float) else f"{key}{value}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
