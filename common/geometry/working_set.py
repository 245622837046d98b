"""The multipliers of many rows, found from the few that decide.

Rows that lack nothing at the answer have no part in it. Which ones do is guessed by block principal
pivoting (Judice, Pires: A block principal pivoting algorithm for large-scale strictly monotone
linear complementarity problems, 1994; here with a bound on how many rows come in at once). The
rows guessed are solved by `common.geometry.dual_active_set`, then every other row is checked: those
that still lack something come in, until there are none. The guess saves time; it decides nothing.
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

FLOAT32_NOISE = 1e-7  # what is left of a sum of unit rows that is zero, once they are in float32
INDEFINITE = 1e-6  # how far below zero, per row, an eigenvalue of a unit Gram matrix may be
# rows that are solved at once; and that may come in, if those that are in are not more
WORKING_SET_SIZE = 200
MAX_PIVOTS = 50  # exchanges of rows before a guess is taken as it is
# added to the squares of unit rows, so that a guess may hold rows that depend
DIAGONAL_SHIFT = 1e-9

Rows = NDArray[np.bool_]


def solve_with_working_set(
    gram: Matrix, lengths: Vector, floors: Vector, gaps: Vector, solver: str
) -> tuple[Solution, Vector]:
    """Solve for a few rows, see what the others lack then, let the worst of them in, and so on.

    Once no row outside lacks anything the answer is that of all rows; a conflict of the rows
    inside is one of all. Rows without a multiplier leave, but only once each: a faint conflict
    could let them in for ever. So a row comes in twice at most, and this ends within 2 m turns.

    Args:
        gram: inner products [m, m] of rows of these lengths [m].
        lengths: of the rows [m].
        floors: of which only the sign matters [m], and only for rows of zeros.
        gaps: of the rows at unit length [m], in the problem's own size.
        solver: as in `solve_dual`.

    Returns:
        The answer, and what its point gains along each unit row [m].

    Raises:
        AggregationError: rows that are solved have no positive semidefinite Gram matrix.
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
    """Guess the rows with multipliers: hold some as equations, exchange those that are wrong."""
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
        except np.linalg.LinAlgError:  # they depend to the last bit
            break
    return inside


def _next_working_set(stay: Rows, inside: Rows, lack: Vector) -> Rows:
    """Return those that stay, with as many again of the rows outside that lack most.

    At least `WORKING_SET_SIZE` may come in.
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
    """Return how much of what each row lacks [m] is rounding."""
    room: Vector = ROUNDING * (1.0 + np.abs(gaps) + np.abs(pulls).sum())
    return room


def _program(products: Matrix, lengths: Vector, gaps: Vector) -> LeastDistanceProgram:
    """Return the program of rows with these inner products [k, k], its factor F [k, k]."""
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
