"""The environment of the processes that FedKeel starts."""

import os
from collections.abc import Mapping

QUIET: Mapping[str, str] = {
    # Telemetry and update checks need the internet. The last one would install torch per run.
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def child_env(*direct: str) -> dict[str, str]:
    """Return the variables that every child process gets in addition to its parent's.

    They turn off telemetry, update checks and installs by Flower and Ray. A child connects to
    loopback directly, whatever HTTP_PROXY and its like say: a proxy on another machine cannot
    reach this machine's loopback.

    Args:
        direct: further hosts that the child connects to without a proxy.
    """
    given = f"{os.environ.get('NO_PROXY', '')},{os.environ.get('no_proxy', '')}".split(",")
    hosts = dict.fromkeys([*(name.strip() for name in given if name.strip()), *LOOPBACK, *direct])
    names = ",".join(hosts)
    return {**QUIET, "NO_PROXY": names, "no_proxy": names}
