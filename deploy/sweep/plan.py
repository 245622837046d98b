"""The plan of a sweep: settings that all its runs share, and settings that are crossed.

    name = "fedpcd-history"           # its folder below --out
    about = "how long to remember"    # a line for the list
    [base]                            # run-config keys of every run, dotted or in tables
    rounds = 60
    [grid]                            # every combination of these
    method = ["fedavg", "fedpcd"]
    seed = [1, 2, 3]
    [[variants]]                      # each crossed with the grid, but for the keys it sets itself
    label = "as it is"
    [[variants]]                      # where there are variants, every run is one of them
    label = "no history"
    fedpcd.history = 0
    [quick]                           # base, grid and variants (tables, or labels of those to keep)
    base.rounds = 3

A key in [quick] replaces the same key of the plan.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from common.config import Flat, flatten, nested
from common.errors import did_you_mean
from deploy.config_input import read_file, read_pair
from deploy.report.run_data import QUICK

TEXTS = ("name", "about")
TABLES = ("base", "grid", "variants")
RUNS = "runs"  # written by a sweep: the label of each run's folder
PLACES = ("name", "out", "resume", "names")  # a sweep chooses them itself
LONGEST_NAME = 60


@dataclass(frozen=True)
class Variant:
    """Named settings. The empty variant means that a plan has none."""

    label: str = ""
    settings: Flat = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """One combination.

    Attributes:
        variant: the variant.
        along: its values of the grid.
        flat: everything that is set, with dotted keys.
    """

    variant: Variant
    along: Flat
    flat: Flat

    def __str__(self) -> str:
        shown = {**self.along, **self.variant.settings}
        said = ", ".join(f"{key}={value}" for key, value in shown.items()) or "the only run"
        return f'"{self.variant.label}" ({said})' if self.variant.label else said


@dataclass(frozen=True)
class Plan:
    """A plan as it was read, see the example of the module.

    Attributes:
        name: name of its folder.
        about: its purpose, in one line.
        base: settings of all runs, with dotted keys.
        grid: values by key, crossed in this order, the last key fastest.
        variants: crossed with the grid, outermost.
        source: the file it was read from, "" for none.
        problems: its errors. They are reported together with the errors of its runs.
    """

    name: str
    about: str = ""
    base: Flat = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    source: str = ""
    problems: tuple[str, ...] = ()

    def points(self) -> Iterator[Point]:
        """Yield every combination once, in order."""
        for variant in self.variants or (Variant(),):
            axes = {key: v for key, v in self.grid.items() if key not in variant.settings}
            for values in product(*axes.values()):
                along = dict(zip(axes, values, strict=True))
                yield Point(variant, along, {**self.base, **along, **variant.settings})

    def fixed(self, settings: Flat) -> "Plan":
        """Return the plan with these settings in every run, whatever it says of them itself."""
        grid = {key: values for key, values in self.grid.items() if key not in settings}
        return replace(
            self,
            base={**self.base, **settings},
            grid=grid,
            variants=_without(self.variants, settings),
        )

    def to_tables(self) -> dict[str, Any]:
        """Return the plan as the tables of its file."""
        variants = [{"label": one.label, **nested(dict(one.settings))} for one in self.variants]
        tables = {"base": nested(dict(self.base)), "grid": dict(self.grid), "variants": variants}
        told = {"name": self.name, "about": self.about, **tables}
        return {key: value for key, value in told.items() if value}


def read_plan(path: Path, *, quick: bool = False, pairs: Sequence[str] = ()) -> Plan:
    """Read a plan's file.

    Args:
        path: a TOML file.
        quick: whether to apply its [quick].
        pairs: KEY=VALUE settings that every run has, whatever the file says.

    Returns:
        The plan with its problems, which `deploy.sweep.runs.runs_of` tells with those of the runs.

    Raises:
        ConfigError: the file cannot be read.
    """
    flat = read_file(path)
    problems: list[str] = []
    plan = _read(path, flat, problems)
    if quick and not any(key == QUICK or key.startswith(f"{QUICK}.") for key in flat):
        problems.append("it has no [quick], which --quick asks for")
    tables = {k.removeprefix(f"{QUICK}."): v for k, v in flat.items() if k.startswith(f"{QUICK}.")}
    quicker = _quickened(plan, tables, problems)
    plan = (quicker if quick else plan).fixed(dict(map(read_pair, pairs)))
    problems += [f"{key}: a sweep chooses that itself" for key in _chosen(plan)]
    return replace(plan, source=str(path), problems=tuple(problems))


def _read(path: Path, flat: Flat, problems: list[str]) -> Plan:
    known = (*TEXTS, *TABLES, QUICK, RUNS)
    for key in dict.fromkeys(key.partition(".")[0] for key in flat):
        if key not in known:
            hint = did_you_mean(key, known)
            problems.append(f'a plan has no "{key}"{hint}; it has: {", ".join(known)}')
    name, about = flat.get("name", path.stem), flat.get("about", "")
    if not isinstance(name, str) or not is_folder(name):
        problems.append(f"name must be the name of a folder, not {name!r}")
    if not isinstance(about, str):
        problems.append(f"about must be a text, not {about!r}")
    base, grid = _table(flat, "base", "", problems), _grid(flat, "", problems)
    variants = _variants(flat.get("variants", []), "variants", problems)
    both = [key for key in base if key in grid]
    problems += [f"{key} stands in both base and grid; leave one" for key in both]
    return Plan(str(name), str(about), base, grid, variants)


def _quickened(plan: Plan, tables: Flat, problems: list[str]) -> Plan:
    """Return the plan with what its [quick] says."""
    for key in dict.fromkeys(key.partition(".")[0] for key in tables):
        if key not in TABLES:
            hint = did_you_mean(key, TABLES)
            problems.append(f'[quick] has no "{key}"{hint}; it has: {", ".join(TABLES)}')
    base = _table(tables, "base", "quick.", problems)
    grid = _grid(tables, "quick.", problems)
    above = {key: value for key, value in plan.base.items() if key not in grid}
    crossed = {key: values for key, values in plan.grid.items() if key not in base}
    return replace(
        plan,
        name=f"{plan.name}-{QUICK}",
        base={**above, **base},
        grid={**crossed, **grid},
        variants=_quick_variants(plan, tables.get("variants"), {**base, **grid}, problems),
    )


def _quick_variants(
    plan: Plan, told: Any, changed: Mapping[str, Any], problems: list[str]
) -> tuple[Variant, ...]:
    """Return the variants of [quick]: its own, or those above, or those that it names."""
    labels = [one.label for one in plan.variants]
    told = labels if told is None else told
    if not isinstance(told, list) or not all(isinstance(one, str) for one in told):
        return _variants(told, "quick.variants", problems)
    for label in told:
        if label not in labels:
            hint = did_you_mean(label, labels)
            problems.append(f'quick.variants: no variant is labelled "{label}"{hint}')
    return _without([one for one in plan.variants if one.label in told], changed)


def _without(variants: Sequence[Variant], keys: Mapping[str, Any]) -> tuple[Variant, ...]:
    return tuple(
        replace(one, settings={k: v for k, v in one.settings.items() if k not in keys})
        for one in variants
    )


def _table(flat: Flat, table: str, above: str, problems: list[str]) -> dict[str, Any]:
    if table in flat:
        problems.append(f"{above}{table} must be a table of settings, not {flat[table]!r}")
    prefix = f"{table}."
    return {k.removeprefix(prefix): v for k, v in flat.items() if k.startswith(prefix)}


def _grid(flat: Flat, above: str, problems: list[str]) -> dict[str, Sequence[Any]]:
    grid = _table(flat, "grid", above, problems)
    bad = [key for key, values in grid.items() if not isinstance(values, list) or not values]
    problems += [
        f"{above}grid.{key} must be a list with at least one value, not {grid[key]!r}"
        for key in bad
    ]
    return {key: values for key, values in grid.items() if key not in bad}


def _variants(told: Any, where: str, problems: list[str]) -> tuple[Variant, ...]:
    if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        problems.append(f"{where} must be tables, [[{where}]], not {told!r}")
        return ()
    variants: list[Variant] = []
    for number, one in enumerate(told, start=1):
        settings = flatten(one)
        label = settings.pop("label", None)
        if not isinstance(label, str) or not label.strip():
            problems.append(f"{where}, number {number}: label must be a text, not {label!r}")
        elif label in [other.label for other in variants]:
            problems.append(f'{where}: the label "{label}" is there twice')
        variants.append(Variant(label if isinstance(label, str) else "", settings))
    return tuple(variants)


def _chosen(plan: Plan) -> list[str]:
    tables = [plan.base, plan.grid, *(one.settings for one in plan.variants)]
    return [key for key in PLACES if any(key in table for table in tables)]


def is_folder(name: str) -> bool:
    """Say whether this can be the name of a sweep's folder."""
    fits = 0 < len(name.encode()) <= LONGEST_NAME
    return fits and not name.startswith(".") and not any(sign in name for sign in "/\\\n\0")
