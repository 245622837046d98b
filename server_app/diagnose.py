"""What a round's record says beside the method's own report, in rounds that are diagnosed.

Everything here looks at the accepted replies and at the step that was made of them, and changes
nothing: a run ends with the same bits whether it is diagnosed or not.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

from common.config import RunConfig
from common.diagnostics import drift_diversity
from common.layout import Layout
from common.threads import one_blas_thread
from common.types import Cohort, Step
from server_app.state import ServerState


@dataclass(frozen=True)
class Diagnosis:
    """Says of each diagnosed round what `diagnostics.*` asks for.

    Attributes:
        config: the run config.
        layout: of the model.
    """

    config: RunConfig
    layout: Layout

    def __call__(self, before: ServerState[Any], cohort: Cohort, step: Step[Any]) -> dict[str, Any]:
        """Return the round's diagnostics as plain JSON values, none if it is not diagnosed."""
        if not self.config.is_diagnosed(cohort.round):
            return {}
        with one_blas_thread():
            return {
                "clients": [update.client for update in cohort.updates],
                "drift": drift_of(cohort, self.layout),
            }


def drift_of(cohort: Cohort, layout: Layout) -> dict[str, Any]:
    """Return the drift diversity of the cohort's displacements, whole and by layer.

    JSON has no infinity: where displacements cancel, the value is None and the layer is named in
    "infinite" ("cancels" is true if all weights do). None without that: nobody moved.
    """
    drift = drift_diversity([update.delta for update in cohort.updates], layout)
    return {
        "whole": _finite(drift.whole),
        "layers": {name: _finite(value) for name, value in drift.layers.items()},
        "infinite": [name for name, value in drift.layers.items() if value == inf],
        "cancels": drift.whole == inf,
    }


def _finite(value: float | None) -> float | None:
    return None if value == inf else value
