"""Group runs into studies and families.

A study has one task: data and their split, model, clients, participation. Its families differ in
the method and its settings. The runs of a family differ only in the seed.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.config import parse
from common.data.sources import FOLDER
from common.errors import FedError
from common.methods import METHODS
from common.run_identity import IGNORED_BY_REPORT, identifying_settings
from common.runs.conformal_results import CONFORMAL
from deploy.config_input import describe_data
from deploy.report.run_data import RunData

Targets = Mapping[str, float]
UNKNOWN = "settings not known"  # title of runs without a config
TASK = ("model", "clients", "participation")  # and all data.* keys


@dataclass(frozen=True)
class Family:
    """Runs that differ only in the seed.

    Attributes:
        label: the method and its varied settings.
        method: its name, "" if unknown.
        settings: the settings that determine the results, without the seed, with dotted keys.
        varied: the settings that differ between the families of the method.
        runs: one per seed, in the order of the seeds.
        personal: whether the results are those of the clients' own models.
    """

    label: str
    method: str
    settings: Mapping[str, Any]
    varied: Mapping[str, Any]
    runs: tuple[RunData, ...]
    personal: bool = False

    @property
    def by_seed(self) -> dict[int | None, RunData]:
        """The evaluated runs, by seed."""
        return {run.seed: run for run in self.runs if run.curve}


@dataclass(frozen=True)
class Study:
    """The families of one task.

    Attributes:
        title: the task in words.
        task: the settings of the task.
        families: at least one, in the order of their first runs.
        target: the accuracy to reach, in [0, 1]. None stands for the final accuracy of the
            reference.
    """

    title: str
    task: Mapping[str, Any]
    families: tuple[Family, ...]
    target: float | None = None

    @property
    def runs(self) -> list[RunData]:
        """All runs, family by family."""
        return [run for family in self.families for run in family.runs]

    def along(self, key: str) -> dict[Any, Family]:
        """Return the families that differ only in this setting, by value, in ascending order.

        A value that is neither a number nor a string is converted to text. If other settings
        vary too, return the largest group. Return {} for fewer than two families.
        """
        groups: dict[str, dict[Any, Family]] = {}
        for family in self.families:
            if key in family.settings and not family.personal:
                rest = {k: v for k, v in family.settings.items() if k != key}
                groups.setdefault(_text(rest), {})[_value(family.settings[key])] = family
        best = max(groups.values(), key=len, default={})
        return dict(sorted(best.items(), key=_in_order)) if len(best) > 1 else {}


def group_runs(runs: Sequence[RunData], targets: Targets | None = None) -> list[Study]:
    """Group runs by task and settings. The clients' own models form families of their own.

    Of several runs with the same settings and seed, only the one with the most results counts.

    Args:
        runs: as returned by `discover`.
        targets: the accuracy to reach, by data set. "" stands for all other data sets.
    """
    wanted = targets or {}
    tasks = _groups(runs, lambda run: _task(run.config))
    titles = _titles(tasks)
    return [
        Study(title, task, _families(members), wanted.get(_data(task), wanted.get("")))
        for title, (task, members) in zip(titles, tasks, strict=True)
    ]


def _data(task: Mapping[str, Any]) -> str:
    """Return the name of the data set. For an image folder, it is the last part of the path."""
    return str(task.get("data.name", "")).removeprefix(FOLDER).rpartition("/")[2]


def _families(runs: Sequence[RunData]) -> tuple[Family, ...]:
    groups = _groups(runs, lambda run: _settings(run.config) or {"folder": run.label})
    own = [settings for settings, _ in groups if "method" in settings]
    families = []
    for settings, members in groups:
        method = str(settings.get("method", ""))
        rivals = [other for other in own if other["method"] == method]
        varied = {key: settings.get(key) for key in _differing(rivals)} if method else {}
        label = " ".join(
            [method, *(setting_text(key, value) for key, value in varied.items())]
        ).strip()
        label = label or members[0].label
        by_seed = {
            run.seed: replace(run, label=label) for run in sorted(members, key=_result_count)
        }
        ordered = tuple(by_seed[seed] for seed in sorted(by_seed, key=lambda seed: seed or 0))
        families.append(Family(label, method, settings, varied, ordered))
        personal = tuple(run.personal for run in ordered if run.personal)
        if personal:
            families.append(
                Family(personal[0].label, method, settings, varied, personal, personal=True)
            )
    return tuple(families)


def _result_count(run: RunData) -> tuple[int, int, int, bool]:
    """Return a sort key: rounds, evaluations, diagnosed rounds, prediction sets."""
    diagnosed = sum(bool(record.diagnostics) for record in run.records)
    sets = run.path is not None and (run.path / CONFORMAL).exists()
    return run.rounds, len(run.evaluated), diagnosed, sets


def _task(config: Mapping[str, Any]) -> dict[str, Any]:
    settings = identifying_settings(config, IGNORED_BY_REPORT)
    return {key: value for key, value in settings.items() if _is_of_task(key)}


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that determine the results, without task, seed and other methods."""
    settings = identifying_settings(config, IGNORED_BY_REPORT)
    return {key: value for key, value in settings.items() if not _is_of_task(key)}


def _is_of_task(key: str) -> bool:
    return key in TASK or key.startswith("data.")


def _groups(
    runs: Iterable[RunData], key: Callable[[RunData], dict[str, Any]]
) -> list[tuple[dict[str, Any], list[RunData]]]:
    groups: dict[str, tuple[dict[str, Any], list[RunData]]] = {}
    for run in runs:
        value = key(run)
        groups.setdefault(_text(value), (value, []))[1].append(run)
    return list(groups.values())


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between the tables."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({_text(table.get(key)) for table in tables}) > 1]


def setting_text(key: str, value: Any) -> str:
    """Return a setting as "key=value", without the method in front of the key."""
    group, _, name = key.rpartition(".")
    shown = f"{value:g}" if isinstance(value, float) else str(value).lower()
    return f"{name if group in METHODS else key}={shown}"


def _titles(tasks: Sequence[tuple[dict[str, Any], list[RunData]]]) -> list[str]:
    """Return the title of each task: the settings that differ between the tasks."""
    known = [(task, runs) for task, runs in tasks if task]
    keys = _differing([task for task, _ in known])
    alone = UNKNOWN if len(tasks) > 1 else ""
    return [
        ", ".join(setting_text(key, task.get(key, "?")) for key in keys if task)
        or in_words(runs[0].config)
        or alone
        for task, runs in tasks
    ]


def in_words(config: Mapping[str, Any]) -> str:
    """Return the task of a config in words, "" if it is unknown."""
    try:
        return describe_data(parse(config)) if config else ""
    except FedError:  # the config of another version
        return ""


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _value(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else _text(value)


def _in_order(item: tuple[Any, Family]) -> tuple[bool, Any]:
    value = item[0]
    return (isinstance(value, str), value)
