"""The small-space mathematics: Gram matrices and projections, without Flower or torch."""

from common.geometry.dual_active_set import check_solver
from common.geometry.gram import (
    COLUMNS,
    all_finite,
    combine,
    combined_length,
    differences,
    inner_products,
    length,
    lengths_of,
)
from common.geometry.min_norm import VANISHED, Weights, min_norm_weights
from common.geometry.projection import (
    MATRICES,
    TRUSTED,
    Multipliers,
    Projection,
    Residuals,
    least_multipliers,
    project_onto_halfspaces,
)
from common.geometry.simplex import project_onto_simplex

__all__ = [
    "COLUMNS",
    "MATRICES",
    "TRUSTED",
    "VANISHED",
    "Multipliers",
    "Projection",
    "Residuals",
    "Weights",
    "all_finite",
    "check_solver",
    "combine",
    "combined_length",
    "differences",
    "inner_products",
    "least_multipliers",
    "length",
    "lengths_of",
    "min_norm_weights",
    "project_onto_halfspaces",
    "project_onto_simplex",
]
