"""Where a run happens: in this process, in Flower's simulation engine, or on real nodes.

An engine's module is imported when a run starts in it: whoever starts a run elsewhere would wait
a second for torch, which only the process that trains needs.
"""

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

__all__ = ["ENGINES", "REMOTE", "Engine", "Job", "Resources"]
