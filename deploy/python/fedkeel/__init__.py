"""The public, stable interface of FedKeel.

    import fedkeel
    result = fedkeel.run("fedpcd", settings={"rounds": 5})
    print(result.fairness)

Importing `fedkeel` is cheap: a name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import version

    from common.errors import (
        AggregationError,
        CheckpointError,
        ClientError,
        ConfigError,
        DataError,
        DeployError,
        FedError,
        WireError,
    )
    from common.fairness import Fairness, accuracies, fairness, rounds_to_reach
    from common.geometry import (
        MinNormWeights,
        Projection,
        min_norm_weights,
        project_onto_halfspaces,
        project_onto_simplex,
    )
    from common.methods import METHODS
    from deploy.federation.superlink_client import SuperLinkClient
    from fedkeel.experiment import RunFailedError, compare, run
    from fedkeel.run_result import ClientRow, RoundRow, RunResult
    from server_app.robust_strategies import Krum, Median, TrimmedMean
    from server_app.strategies import (
        AFL,
        QFFL,
        Craft,
        Ditto,
        FedAdam,
        FedAvg,
        FedDyn,
        FedFV,
        FedHEAL,
        FedLF,
        FedMGDA,
        FedNova,
        FedPCD,
        FedProx,
        FedPVR,
        FedPW,
        Scaffold,
    )

    __version__ = version("fedkeel")

_NAMES = {
    "common.errors": "AggregationError CheckpointError ClientError ConfigError DataError "
    "DeployError FedError WireError",
    "common.fairness": "Fairness accuracies fairness rounds_to_reach",
    "common.geometry": "MinNormWeights Projection min_norm_weights project_onto_halfspaces "
    "project_onto_simplex",
    "common.methods": "METHODS",
    "deploy.federation.superlink_client": "SuperLinkClient",
    "fedkeel.experiment": "RunFailedError compare run",
    "fedkeel.run_result": "ClientRow RoundRow RunResult",
    "server_app.robust_strategies": "Krum Median TrimmedMean",
    "server_app.strategies": "AFL Craft Ditto FedAdam FedAvg FedDyn FedFV FedHEAL FedLF FedMGDA "
    "FedNova FedPCD FedPVR FedPW FedProx QFFL Scaffold",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AFL",
    "METHODS",
    "QFFL",
    "AggregationError",
    "CheckpointError",
    "ClientError",
    "ClientRow",
    "ConfigError",
    "Craft",
    "DataError",
    "DeployError",
    "Ditto",
    "Fairness",
    "FedAdam",
    "FedAvg",
    "FedDyn",
    "FedError",
    "FedFV",
    "FedHEAL",
    "FedLF",
    "FedMGDA",
    "FedNova",
    "FedPCD",
    "FedPVR",
    "FedPW",
    "FedProx",
    "Krum",
    "Median",
    "MinNormWeights",
    "Projection",
    "RoundRow",
    "RunFailedError",
    "RunResult",
    "Scaffold",
    "SuperLinkClient",
    "TrimmedMean",
    "WireError",
    "__version__",
    "accuracies",
    "compare",
    "fairness",
    "min_norm_weights",
    "project_onto_halfspaces",
    "project_onto_simplex",
    "rounds_to_reach",
    "run",
]


if not TYPE_CHECKING:  # so that a type checker refuses unknown names

    def __getattr__(name: str) -> Any:
        """Load a public name when it is first used.

        Raises:
            AttributeError: `fedkeel` has no such name.
        """
        if name == "__version__":
            value: Any = import_module("importlib.metadata").version("fedkeel")
        elif name in _MODULE_OF:
            value = getattr(import_module(_MODULE_OF[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
