"""The small-space mathematics: Gram matrices and projections, without Flower or torch."""

from common.geometry.gram import combine, inner_products
from common.geometry.halfspaces import (
    Multipliers,
    Projection,
    Residuals,
    least_multipliers,
    project_onto_halfspaces,
)
from common.geometry.least_distance import check_solver

__all__ = [
    "Multipliers",
    "Projection",
    "Residuals",
    "check_solver",
    "combine",
    "inner_products",
    "least_multipliers",
    "project_onto_halfspaces",
]
