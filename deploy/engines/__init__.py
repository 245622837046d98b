"""Where a run happens: in this process, in Flower's simulation engine, or on real nodes.

An engine's module is imported when a run starts in it, because its import loads torch. That takes a
second, and only the process that trains needs torch.
"""

import os
from collections.abc import Mapping

from common.config import RunConfig
from deploy.engines.base import Engine, Job, Resources


def _simulation(config: RunConfig, resources: Resources) -> Job:
    from deploy.engines.simulation import SimulationJob

    return SimulationJob(config, resources)


def _inline(config: RunConfig, resources: Resources) -> Job:
    from deploy.engines.inline import InlineJob

    return InlineJob(config, resources)


def _superlink(config: RunConfig, resources: Resources) -> Job:
    from deploy.engines.superlink import SuperLinkJob

    return SuperLinkJob(config, resources)


ENGINES: Mapping[str, Engine] = {
    "simulation": _simulation,
    "inline": _inline,
    "superlink": _superlink,
}
REMOTE = {"superlink"}  # their clients use none of this machine
IGNORED_VARIABLES: Mapping[str, str] = {
    "simulation": "RAY_ADDRESS",  # a cluster's workers lack the mark by which a run is ended
}


def ignored_variable_warning(engine: str) -> str:
    """Say which variable of the environment an engine does not heed, "" if none is set."""
    name = IGNORED_VARIABLES.get(engine, "")
    if not os.environ.get(name):
        return ""
    return (
        f"{name} ({os.environ[name]}) is passed over: this engine starts Ray on this machine "
        "alone; on a cluster, use flwr run"
    )


__all__ = ["ENGINES", "REMOTE", "Engine", "Job", "Resources", "ignored_variable_warning"]
