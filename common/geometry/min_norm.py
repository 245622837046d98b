"""The shortest convex combination of m vectors, from their Gram matrix.

Over the whole simplex this is the least-distance problem: with z the shortest vector that satisfies
u_k . z >= 1 for all k and z = sum_k mu_k u_k, the point of the hull nearest to 0 is z / |z|^2, and
its weights are mu / sum(mu). If no such z exists, 0 is in the hull, and the conflict gives the
weights.

With bounds on the weights a QP solver proposes, and a primal active-set method (Nocedal, Wright:
Numerical Optimization, 2nd ed. 2006, section 16.5) continues from there until every optimality
condition holds.
"""

from dataclasses import dataclass

import numpy as np

from common.errors import AggregationError
from common.geometry.dual_active_set import MAX_STEPS_PER_CONSTRAINT, solve_qp
from common.geometry.gram import combined_length
from common.geometry.projection import solve_dual
from common.types import Matrix, Vector

ZERO_LENGTH = 1e-6  # a shorter combination of unit rows is rounding of float32 vectors
OPTIMAL_RESIDUAL = 1e-12  # residual at which the active-set method stops
RANK_TOLERANCE = 1e-12  # relative to the largest singular value
BOUNDS_TOLERANCE = 1e-9  # the bounds may miss a sum of 1 by this much


@dataclass(frozen=True, kw_only=True)
class MinNormWeights:
    """The weights of a shortest convex combination, with their residual.

    Attributes:
        weights: lambda [m] >= 0, within the bounds. Their sum is 1 up to rounding.
        length: length of sum_k lambda_k u_k. Exactly 0 if 0 is in the hull.
        residual: how fast the squared length would still fall if weight moved from one row to
            another, relative to the square of the longest row. 0 is optimal.
        decided_by: as in `DualSolution`, or, with bounds, "primal active set" or "osqp".
    """

    weights: Vector
    length: float
    residual: float
    decided_by: str


def min_norm_weights(
    gram: Matrix, low: Vector | None = None, high: Vector | None = None
) -> MinNormWeights:
    """Return the lambda >= 0 with sum 1 that minimises lambda^T gram lambda.

    If rows depend on each other, the combination is unique but its weights are not. Without bounds,
    0 counts as in the hull if unit rows come within 1e-7 of it (`solve_dual`).

    Args:
        gram: inner products [m, m] in float64 of at least one row. Rows of zeros are allowed.
        low: smallest weights [m] >= 0. The default is 0.
        high: largest weights [m]. The default is 1.

    Raises:
        AggregationError: there are no rows, no weights satisfy the bounds, or gram is not a Gram
            matrix.

    >>> import numpy as np
    >>> min_norm_weights(np.array([[1.0, 0.0], [0.0, 1.0]])).weights.round(6).tolist()
    [0.5, 0.5]
    """
    m = len(gram)
    if not m or gram.shape != (m, m) or not np.isfinite(gram).all():
        raise AggregationError(
            f"expected the finite inner products of at least one row, got a matrix {gram.shape}; "
            "build it with inner_products"
        )
    if low is None and high is None:
        return _on_simplex(gram)
    low = np.zeros(m) if low is None else np.asarray(low, dtype=np.float64)
    high = np.ones(m) if high is None else np.asarray(high, dtype=np.float64)
    fit = low.shape == high.shape == (m,) and (low >= 0).all() and (low <= high).all()
    if not fit or not low.sum() - BOUNDS_TOLERANCE <= 1 <= high.sum() + BOUNDS_TOLERANCE:
        raise AggregationError(
            f"expected bounds 0 <= low <= high for {m} weights that can add up to 1, "
            f"got {low} and {high}"
        )
    return _in_boxes(gram, low, high)


def _on_simplex(gram: Matrix) -> MinNormWeights:
    """Return the weights without bounds."""
    m = len(gram)
    answer = solve_dual(gram, np.ones(m))
    weights = answer.multipliers
    if not answer.feasible:
        lengths = np.sqrt(np.diag(gram))
        lengths[lengths == 0] = 1.0  # this row alone is the conflict
        weights = answer.conflict * (lengths.min() / lengths)
    weights = weights / weights.sum()
    length = combined_length(weights, gram) if answer.feasible else 0.0
    residual = _residual(gram, weights, np.zeros(m), np.ones(m))
    return MinNormWeights(
        weights=weights, length=length, residual=residual, decided_by=answer.decided_by
    )


def _in_boxes(gram: Matrix, low: Vector, high: Vector) -> MinNormWeights:
    """Improve the QP solver's proposal. If that fails, return the proposal itself."""
    m = len(gram)
    scaled = gram / (np.diag(gram).max() or 1.0)
    proposal = solve_qp(
        "osqp", scaled, np.zeros(m), A=np.ones((1, m)), b=np.ones(1), lb=low, ub=high
    )
    start = _project_into_bounds(low if proposal is None else proposal, low, high)
    candidates = {"primal active set": _improve(scaled, start, low, high), "osqp": start}
    residuals = {name: _residual(scaled, w, low, high) for name, w in candidates.items()}
    best = min(residuals, key=lambda name: residuals[name])  # the first one of equal ones
    weights = candidates[best]
    return MinNormWeights(
        weights=weights,
        length=combined_length(weights, gram),
        residual=residuals[best],
        decided_by=best,
    )


def _project_into_bounds(weights: Vector, low: Vector, high: Vector) -> Vector:
    """Return the nearest weights [m] within the bounds that add up to 1."""
    edges = np.sort(np.concatenate([low - weights, high - weights]))
    sums = np.clip(weights + edges[:, None], low, high).sum(axis=1)
    shifted: Vector = np.clip(weights + np.interp(1.0, sums, edges), low, high)
    return shifted


def _improve(gram: Matrix, weights: Vector, low: Vector, high: Vector) -> Vector:
    """Move from weights within the bounds to the best ones, by a primal active-set method."""
    m = len(gram)
    free = (weights > low) & (weights < high)
    for _ in range(MAX_STEPS_PER_CONSTRAINT * m):
        step = _step(gram, weights, free)
        room = np.where(step > 0, high, low) - weights
        stops = np.divide(room, step, out=np.full(m, np.inf), where=step != 0)
        first = int(stops.argmin())
        if stops[first] < 1:
            weights = weights + stops[first] * step
            weights[first] = high[first] if step[first] > 0 else low[first]
            free[first] = False
            continue
        weights = weights + step
        slopes = gram @ weights
        up, down = _best_exchange(slopes, weights, low, high)
        if slopes[down] - slopes[up] <= OPTIMAL_RESIDUAL:
            break
        candidates = [up, down]  # both if none is free, because one alone cannot move
        if free.any():
            level = slopes[free].mean()
            candidates = [up if level - slopes[up] > slopes[down] - level else down]
        if free[candidates].all():
            break  # rounding allows no better solution
        free[candidates] = True
    improved: Vector = np.clip(weights, low, high)  # removes rounding outside the bounds
    return improved


def _step(gram: Matrix, weights: Vector, free: Vector) -> Vector:
    """Return the step [m] to the least length that moves the free weights and keeps their sum."""
    index = np.flatnonzero(free)
    k = index.size
    system = np.ones((k + 1, k + 1))
    system[:k, :k] = gram[np.ix_(index, index)]
    system[k, k] = 0.0
    wanted = np.append(-(gram @ weights)[index], 0.0)
    step = np.zeros_like(weights)
    step[index] = np.linalg.lstsq(system, wanted, rcond=RANK_TOLERANCE)[0][:k]
    return step


def _best_exchange(slopes: Vector, weights: Vector, low: Vector, high: Vector) -> tuple[int, int]:
    """Return the indices of the weight to increase and of the weight to decrease."""
    up = np.where(weights < high, slopes, np.inf).argmin()
    return int(up), int(np.where(weights > low, slopes, -np.inf).argmax())


def _residual(gram: Matrix, weights: Vector, low: Vector, high: Vector) -> float:
    """Return the residual of the weights, as in `MinNormWeights`."""
    slopes = gram @ weights
    up, down = _best_exchange(slopes, weights, low, high)
    if weights[up] >= high[up] or weights[down] <= low[down]:
        return 0.0  # no weight can move
    size = float(np.diag(gram).max()) or 1.0
    return max(0.0, float(slopes[down] - slopes[up])) / size
