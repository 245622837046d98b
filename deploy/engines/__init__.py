"""Where a run happens: in this process, in Flower's simulation engine, or on real nodes."""

from collections.abc import Mapping

from deploy.engines.base import Engine, Job, Resources
from deploy.engines.inline import InlineJob
from deploy.engines.simulation import SimulationJob
from deploy.engines.superlink import SuperLinkJob

ENGINES: Mapping[str, Engine] = {
    "simulation": SimulationJob,
    "inline": InlineJob,
    "superlink": SuperLinkJob,
}
REMOTE = {"superlink"}  # their clients use none of this machine

__all__ = ["ENGINES", "REMOTE", "Engine", "Job", "Resources"]
