"""Which settings identify a run: for resume, for sweeps and for reports.

Two runs whose identifying settings agree are the same run. Settings of methods that a run does not
use never count. The other settings that do not count depend on the question:

| settings                                          | resume  | sweep   | report  |
|---------------------------------------------------|---------|---------|---------|
| EXECUTION: directories, device, timeouts, ...     | ignored | ignored | ignored |
| MEASUREMENT: evaluation, diagnostics, conformal   | ignored | counts  | ignored |
| rounds                                            | ignored | counts  | counts  |
| seed                                              | counts  | counts  | ignored |

- Resume asks whether a checkpoint fits. Its weights depend neither on EXECUTION nor on MEASUREMENT,
  and a run may be resumed with more rounds.
- A sweep asks whether a run has already produced the planned results. These include its
  measurements, after its last round.
- A report asks which runs repeat one experiment. Repetitions differ in the seed.
"""

import hashlib
import json
from collections.abc import Collection
from typing import Any

from common.config import Flat, RunConfig
from common.config_groups import ConformalConfig, DiagnosticsConfig
from common.methods import METHODS

EXECUTION = (
    "names", "name", "out", "resume", "data.root", "data.download", "train.device",
    "train.cuda-graph", "server.quorum", "server.retries", "server.patience",
    "server.start-timeout", "server.round-timeout", "server.max-void-rounds",
    "server.checkpoint-every", "server.keep-checkpoints", "server.on-disk",
    "server.group-access",
)  # fmt: skip
MEASUREMENT = (
    "eval-every",
    *(f"diagnostics.{key}" for key in DiagnosticsConfig().to_table()),
    *(f"conformal.{key}" for key in ConformalConfig().to_table()),
)
IGNORED_BY_RESUME = frozenset({*EXECUTION, *MEASUREMENT, "rounds"})
IGNORED_BY_SWEEP = frozenset(EXECUTION)
IGNORED_BY_REPORT = frozenset({*EXECUTION, *MEASUREMENT, "seed"})
# These settings are newer than some checkpoints. Their defaults do what FedKeel did before.
NEWER_THAN_CHECKPOINTS = (
    "train.precision",
    "server.max-update-ratio",
    "server.max-update-norm",
)


def identifying_settings(flat: Flat, ignored: Collection[str]) -> dict[str, Any]:
    """Return the settings that identify a run, in order.

    Args:
        flat: the run config, with dotted keys.
        ignored: the keys that do not count, such as IGNORED_BY_SWEEP.
    """
    unused = {name for name in METHODS if name != flat.get("method")}
    return {
        key: value
        for key, value in flat.items()
        if key not in ignored and key.partition(".")[0] not in unused
    }


def fingerprint(config: RunConfig) -> str:
    """Return the digest that a checkpoint carries. A resumed run must have the same."""
    flat, defaults = config.to_flat(), RunConfig().to_flat()
    newer = {key for key in NEWER_THAN_CHECKPOINTS if flat[key] == defaults[key]}
    return _digest(identifying_settings(flat, IGNORED_BY_RESUME | newer))


def sweep_identity(config: RunConfig) -> str:
    """Return the digest by which a sweep recognises a run that it has done."""
    return _digest(identifying_settings(config.to_flat(), IGNORED_BY_SWEEP))


def _digest(settings: Flat) -> str:
    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
