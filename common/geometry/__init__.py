"""Gram matrices, projections and least-distance programs, without Flower or torch."""

from common.geometry.dual_active_set import check_solver
from common.geometry.gram import (
    MAX_COLUMNS,
    all_finite,
    combine,
    combined_length,
    differences,
    finite_length,
    inner_products,
    length,
    lengths_and_scales,
)
from common.geometry.min_norm import ZERO_LENGTH, MinNormWeights, min_norm_weights
from common.geometry.projection import (
    RESIDUAL_TOLERANCE,
    WORK_MATRICES,
    DualSolution,
    Projection,
    Residuals,
    project_onto_halfspaces,
    solve_dual,
)
from common.geometry.simplex import project_onto_simplex

__all__ = [
    "MAX_COLUMNS",
    "RESIDUAL_TOLERANCE",
    "WORK_MATRICES",
    "ZERO_LENGTH",
    "DualSolution",
    "MinNormWeights",
    "Projection",
    "Residuals",
    "all_finite",
    "check_solver",
    "combine",
    "combined_length",
    "differences",
    "finite_length",
    "inner_products",
    "length",
    "lengths_and_scales",
    "min_norm_weights",
    "project_onto_halfspaces",
    "project_onto_simplex",
    "solve_dual",
]
