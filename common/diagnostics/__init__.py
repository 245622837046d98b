"""What can be said of a round beside its model: pure functions of arrays, without torch."""

from common.diagnostics.drift import Drift, drift_diversity, layers_of

__all__ = ["Drift", "drift_diversity", "layers_of"]
