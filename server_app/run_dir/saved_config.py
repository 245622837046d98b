"""SavedConfig: the `config.toml` of a run directory."""

import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from common.config import RunConfig, flatten, nested, parse
from common.errors import ConfigError
from common.io.files import atomic_write
from common.run_identity import IGNORED_BY_RESUME, fingerprint

PLACE_KEYS = ("name", "out", "resume")  # keys that say where a run is, which are not saved


@dataclass(frozen=True)
class SavedConfig:
    """The config with which a run was started, in the file at `path`."""

    path: Path

    def write(self, config: RunConfig) -> None:
        """Write the file and its directory.

        Raises:
            OSError: the file cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flat = {k: v for k, v in config.to_flat().items() if k not in PLACE_KEYS}
        with atomic_write(self.path) as file:
            tomli_w.dump(nested(flat), file)

    def read(self) -> dict[str, Any]:
        """Return the config as a flat table, empty if the file is missing or damaged."""
        try:
            return flatten(tomllib.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the run writes checkpoints."""
        return self.read().get("server.checkpoint-every") != 0

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the config, "" if the file is missing or damaged."""
        flat = self.read()
        with suppress(ConfigError):
            return fingerprint(parse(flat)) if flat else ""
        return ""

    def changes(self, config: RunConfig) -> str:
        """Return how `config` differs from the saved one in what determines the results."""
        saved, flat = self.read(), config.to_flat()
        if not saved:
            return f"which one is not known, because its {self.path.name} is lost"
        was = {**RunConfig().to_flat(), **saved}  # keys that are newer than the file
        changes = [
            f"{key} was {was[key]!r}, is {flat[key]!r}"
            for key in flat
            if key not in IGNORED_BY_RESUME and was[key] != flat[key]
        ]
        same = f"its {self.path.name} says the same, so perhaps another version of FedKeel made it"
        return "; ".join(changes) or same
