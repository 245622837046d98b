"""Where a run happens: in this process, or in Flower's simulation engine."""

from collections.abc import Mapping

from deploy.engines.base import Engine, Job, Resources
from deploy.engines.inline import InlineJob
from deploy.engines.simulation import SimulationJob

ENGINES: Mapping[str, Engine] = {"simulation": SimulationJob, "inline": InlineJob}

__all__ = ["ENGINES", "Engine", "Job", "Resources"]
