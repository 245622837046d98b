"""Environment variables that turn off telemetry, update checks and installs by Flower and Ray."""

from collections.abc import Mapping

QUIET: Mapping[str, str] = {
    # Telemetry and update checks need the internet. The last one would install torch per run.
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
