"""The environment in which Flower keeps quiet."""

from collections.abc import Mapping

QUIET: Mapping[str, str] = {
    # Neither telemetry nor an update check, which would ask the internet, nor installing torch
    # anew for each run.
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
