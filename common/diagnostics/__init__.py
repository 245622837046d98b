"""Numbers about a round besides its model: pure functions of arrays, without torch."""

from common.diagnostics.alignment import cosines_with, expected_occupancy
from common.diagnostics.cka import (
    centred_gram,
    cka_matrix,
    cka_of_features,
    cka_of_grams,
    linear_cka,
    mean_of_pairs,
)
from common.diagnostics.drift import Drift, drift_diversity, layers_of
from common.diagnostics.theorem import (
    RoundConditions,
    Terms,
    Verdict,
    error_bound,
    relative_error,
    verdict,
)

__all__ = [
    "Drift",
    "RoundConditions",
    "Terms",
    "Verdict",
    "centred_gram",
    "cka_matrix",
    "cka_of_features",
    "cka_of_grams",
    "cosines_with",
    "drift_diversity",
    "error_bound",
    "expected_occupancy",
    "layers_of",
    "linear_cka",
    "mean_of_pairs",
    "relative_error",
    "verdict",
]
