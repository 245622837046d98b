"""The multipliers of many rows, computed from a working set of rows.

Rows that are not active at the solution do not affect it. The active ones are predicted by block
principal pivoting (Judice, Pires: A block principal pivoting algorithm for large-scale strictly
monotone linear complementarity problems, 1994), with a bound on how many rows are added at a time.
`common.geometry.dual_active_set` solves the predicted rows. Then every other row is checked, and
the violated ones are added, until none is violated. The prediction saves time. It does not change
the result.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from common.errors import AggregationError
from common.geometry.dual_active_set import (
    ROUNDING,
    LeastDistanceProgram,
    Solution,
    solve_least_distance,
)
from common.types import Matrix, Vector

FLOAT32_NOISE = 1e-7  # length of a zero combination of unit rows after rounding to float32
INDEFINITE = 1e-6  # size per row of a negative eigenvalue that rounding can cause
# Rows that are solved together, and smallest limit on the rows added at a time.
WORKING_SET_SIZE = 200
MAX_PIVOTS = 50  # exchanges of rows before the prediction is used as it is
# Added to the squares of unit rows, so that dependent rows can be solved together.
DIAGONAL_SHIFT = 1e-9

Rows = NDArray[np.bool_]


def solve_with_working_set(
    gram: Matrix, lengths: Vector, floors: Vector, gaps: Vector, solver: str
) -> tuple[Solution, Vector]:
    """Solve for a few rows, add the most violated other rows, and repeat.

    When no row outside is violated, the solution is that of all rows. A conflict of the rows inside
    is a conflict of all rows. Rows without a multiplier leave, but only once each, because an
    uncertain conflict could add them forever. So a row enters at most twice, and this ends within 2
    m rounds.

    Args:
        gram: inner products [m, m] of rows of these lengths.
        lengths: lengths of the rows [m].
        floors: lower bounds [m]. Only their signs matter, for rows of zeros.
        gaps: gaps of the rows at unit length [m], in the problem's own size.
        solver: as in `solve_dual`.

    Returns:
        The solution, and u_k . z for each unit row [m].

    Raises:
        AggregationError: the Gram matrix of the solved rows is not positive semidefinite.
    """
    m = gaps.size
    scale = np.divide(1.0, lengths, out=np.zeros(m), where=lengths > 0)
    inside, left = np.ones(m, dtype=bool), np.zeros(m, dtype=bool)
    if m > WORKING_SET_SIZE:
        inside = _predict_active(gram, scale, gaps) | ((lengths == 0) & (floors > 0))
    while True:
        rows = np.flatnonzero(inside)
        program = _program(gram[np.ix_(rows, rows)], lengths[rows], gaps[rows])
        answer = solve_least_distance(program, floors[rows], lengths[rows], solver)
        pulls, conflict = np.zeros((2, m))
        pulls[rows], conflict[rows] = answer.multipliers, answer.conflict
        gains = _gains(gram, scale, pulls)
        stay = (pulls > 0) | (inside & left)
        joined = _next_working_set(stay, inside, gaps - gains - _rounding_room(gaps, pulls))
        if not answer.feasible or not (joined & ~inside).any():
            return replace(answer, multipliers=pulls, conflict=conflict), gains
        left |= inside & ~stay
        inside = joined


def _predict_active(gram: Matrix, scale: Vector, gaps: Vector) -> Rows:
    """Predict the active rows: solve some as equations, and exchange those with the wrong sign.

    Args:
        gram: inner products [m, m].
        scale: reciprocals of the rows' lengths [m].
        gaps: gaps of the rows at unit length [m].

    Returns:
        Whether each row is predicted active [m].
    """
    pulls = np.zeros(gaps.size)
    inside = pulls > 0
    for _ in range(MAX_PIVOTS):
        lack = gaps - _gains(gram, scale, pulls) - _rounding_room(gaps, pulls)
        joined = _next_working_set(pulls > 0, inside, lack)
        if (joined == inside).all():
            break
        inside = joined
        rows = np.flatnonzero(inside)
        unit = gram[np.ix_(rows, rows)]
        unit *= scale[rows]
        unit *= scale[rows, None]
        np.fill_diagonal(unit, 1.0 + DIAGONAL_SHIFT)
        pulls = np.zeros(gaps.size)
        try:
            pulls[rows] = np.linalg.solve(unit, gaps[rows])
        except np.linalg.LinAlgError:  # exactly dependent rows
            break
    return inside


def _next_working_set(stay: Rows, inside: Rows, lack: Vector) -> Rows:
    """Return the rows that stay, and the most violated rows outside.

    As many rows are added as stay, but at least `WORKING_SET_SIZE`.

    Args:
        stay: rows that stay [m].
        inside: the present working set [m].
        lack: violation of each row [m].
    """
    wanting = np.flatnonzero((lack > 0) & ~inside)
    order = np.argsort(-lack[wanting], kind="stable")
    joined = stay.copy()
    joined[wanting[order[: max(WORKING_SET_SIZE, np.count_nonzero(stay))]]] = True
    return joined


def _gains(gram: Matrix, scale: Vector, pulls: Vector) -> Vector:
    """Return u_k . z [m] for the unit rows u_k and z = sum_k pulls_k u_k."""
    rows = np.flatnonzero(pulls)
    gains: Vector = (pulls[rows] * scale[rows]) @ gram[rows] * scale
    return gains


def _rounding_room(gaps: Vector, pulls: Vector) -> Vector:
    """Return the part of each row's violation [m] that can be rounding."""
    room: Vector = ROUNDING * (1.0 + np.abs(gaps) + np.abs(pulls).sum())
    return room


def _program(products: Matrix, lengths: Vector, gaps: Vector) -> LeastDistanceProgram:
    """Return the program of these rows, with a factor F [k, k].

    Args:
        products: inner products of the rows [k, k].
        lengths: lengths of the rows [k].
        gaps: gaps of the rows at unit length [k].

    Raises:
        AggregationError: the products are not positive semidefinite.
    """
    k = len(products)
    bounds = np.outer(lengths, lengths)
    unit = np.divide(products, bounds, out=np.zeros_like(bounds), where=bounds > 0)
    values, vectors = np.linalg.eigh((unit + unit.T) / 2)
    if values.min(initial=0.0) < -INDEFINITE * k:
        raise AggregationError(
            f"expected a positive semidefinite gram, got the eigenvalue {values.min()} with "
            f"{k} of its rows at unit length; build it with inner_products"
        )
    noise = k * np.finfo(np.float64).eps * float(values.max(initial=0.0))
    factor = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    return LeastDistanceProgram(factor, gaps, tolerance=max(FLOAT32_NOISE, np.sqrt(noise)))
