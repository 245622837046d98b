"""The plan of a sweep that was typed, without a file."""

from collections.abc import Sequence
from typing import Any

from common.config import Flat
from common.errors import ConfigError
from deploy.config_input import read_pair
from deploy.sweep.plan import PLACES, Plan


def crossed(name: str, settings: Flat, axes: Sequence[str]) -> Plan:
    """Return a plan from what was typed.

    Args:
        name: name of the plan.
        settings: settings of all runs, with dotted keys. Those that a sweep chooses are left out.
        axes: KEY=VALUE,VALUE,... each, or KEY=[VALUE, ...] in TOML, crossed in this order.

    Raises:
        ConfigError: one of them has no "=", or no value, or two are of the same key.
    """
    read = [_axis(text) for text in axes]
    keys = [key for key, _ in read]
    for twice in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        raise ConfigError(
            f"{twice} is given values twice; give all of them at once (the methods of a comparison "
            "are its arguments, the seeds --seeds)"
        )
    grid = dict(read)
    base = {key: v for key, v in settings.items() if key not in grid and key not in PLACES}
    return Plan(name, base=base, grid=grid)


def _axis(text: str) -> tuple[str, list[Any]]:
    if "=" not in text:
        raise ConfigError(f'--vary takes KEY=VALUE,VALUE, got "{text}"')
    key, whole = read_pair(text)
    if isinstance(whole, list):
        values = whole
    else:
        values = [read_pair(f"{key}={one}")[1] for one in text.partition("=")[2].split(",") if one]
    if not values:
        raise ConfigError(f'"{text}" has no values; expected {key}=VALUE,VALUE')
    return key, values
