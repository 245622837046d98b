"""The nearest point that satisfies m linear constraints, computed in the space of the constraints.

With unit rows u_k, a target t and the gaps b_k = floor_k - u_k . t, the point is t + z, where z
solves the least-distance problem

    min 1/2 |z|^2  subject to  F^T z >= b,    F [k, m] with F^T F the Gram matrix of the rows.

Its dual is  min 1/2 |F mu|^2 - b . mu,  mu >= 0,  with z = F mu. F is computed from the rows (QR)
if they are available, which does not square the problem's condition number. Otherwise it is
computed from their Gram matrix.

`common.geometry.dual_active_set` finds z. `common.geometry.working_set` leaves out rows that do not
affect it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.errors import AggregationError
from common.geometry.dual_active_set import (
    MAX_MAGNITUDE,
    ROUNDING,
    LeastDistanceProgram,
    Solution,
    solve_least_distance,
)
from common.geometry.working_set import solve_with_working_set
from common.types import Matrix, Vector

# Largest residual of a usable solution, of this or another program.
RESIDUAL_TOLERANCE = 1e-6
PRODUCT_TOLERANCE = 1e-6  # error of an inner product, relative to the product of the lengths
WORK_MATRICES = 10  # matrices [m, m] that `solve_dual` and `min_norm_weights` need at most
ROWS_PER_BAND = 64  # rows of a large matrix that are checked together


@dataclass(frozen=True)
class Residuals:
    """The distance of a solution from optimality, for unit rows and relative to the problem's size.

    Attributes:
        primal: the largest violation of a constraint.
        dual: the length of point - target - normals^T multipliers. Without a point, the size of the
            most negative multiplier.
        complementarity: the largest |multiplier * slack|.
    """

    primal: float
    dual: float
    complementarity: float

    def largest(self) -> float:
        """Return the largest of the three."""
        return max(self.primal, self.dual, self.complementarity)


@dataclass(frozen=True, kw_only=True)
class DualSolution:
    """The multipliers of a projection, with their residuals.

    Attributes:
        multipliers: mu [m] >= 0. All are zero if nothing is violated, or if no point satisfies all.
        feasible: whether some point satisfies all constraints.
        residuals: residuals of this solution. If not feasible, those of the unchanged target.
        decided_by: "nothing to do", "a row of zeros", the QP solver's name or "dual active set".
        conflict: if not feasible, lambda [m] >= 0 that adds up to 1, with sum_k lambda_k u_k = 0
            for the unit rows u_k and a positive weighted floor. It shows which constraints exclude
            each other. Zeros if feasible.
    """

    multipliers: Vector
    feasible: bool
    residuals: Residuals
    decided_by: str
    conflict: Vector

    @property
    def active(self) -> NDArray[np.intp]:
        """The indices of the active constraints, which have a positive multiplier."""
        return np.flatnonzero(self.multipliers)


@dataclass(frozen=True, kw_only=True)
class Projection(DualSolution):
    """The nearest point of the intersection.

    Attributes:
        point: target + normals^T multipliers [d].
    """

    point: Vector


def project_onto_halfspaces(
    target: Vector, normals: Matrix, floors: Vector, *, solver: str = "osqp"
) -> Projection:
    """Return the point nearest to `target` with normals_k . point >= floors_k for all k.

    Rows are normalised and the problem is scaled by its own size. So neither the rows' lengths nor
    the units matter. A row of zeros requires 0 >= floor. If nothing is violated beyond rounding, or
    no point satisfies all constraints, the result is the target itself.

    Args:
        target: the point to project [d].
        normals: one row per constraint [m, d]. They are factored, so use `solve_dual` for long
            rows.
        floors: lower bound of each constraint [m].
        solver: a QP solver that qpsolvers finds and that is tried first, or "exact".

    Raises:
        AggregationError: shapes do not fit, or a number is not finite.
        ConfigError: the solver is not installed.

    >>> import numpy as np
    >>> found = project_onto_halfspaces(np.zeros(2), np.array([[0.0, 2.0]]), np.array([1.0]))
    >>> found.point.round(6).tolist(), found.multipliers.round(6).tolist()
    ([0.0, 0.5], [0.25])
    """
    m, d = np.size(floors), np.size(target)
    target = _checked("target", target, (d,))
    normals = _checked("normals", normals, (m, d))
    floors = _checked("floors", floors, (m,))
    peaks = np.abs(normals).max(axis=1, initial=0.0)
    units = normals / np.where(peaks > 0, peaks, 1.0)[:, None]
    lengths = np.linalg.norm(units, axis=1)
    units /= np.where(peaks > 0, lengths, 1.0)[:, None]
    lengths *= peaks

    levels = _per_length("floors", floors, lengths)
    gaps = levels - units @ target
    size = float(max(np.linalg.norm(target), gaps.max(initial=0.0)))
    basis, factor = np.linalg.qr(units.T)
    program = LeastDistanceProgram(factor, gaps / (size or 1.0), tolerance=10 * ROUNDING)
    answer = solve_least_distance(program, floors, lengths, solver)

    point = target + size * (basis @ answer.push) if answer.multipliers.any() else target.copy()
    drift = np.linalg.norm(point - target - size * (answer.multipliers @ units))
    slack = units @ point - levels
    reach = max(size, float(np.linalg.norm(point)))
    return Projection(
        point=point, **_shared_fields(answer, lengths, size, slack, float(drift), reach)
    )


def solve_dual(
    gram: Matrix, gaps: Vector, *, target_length: float = 0.0, solver: str = "osqp"
) -> DualSolution:
    """Return the mu >= 0 that minimises 1/2 mu^T gram mu - gaps . mu.

    With gram = A A^T and gaps = floors - A target these are the multipliers of the projection of
    the target onto {x : A x >= floors}, for rows that are too long to be factored.

    A Gram matrix resolves lengths only down to the root of its rounding. Rows therefore count as in
    conflict if weights that add up to 1 bring the unit rows within 1e-7 of zero, which is also what
    float32 rounding leaves of an exact conflict. Their weighted gap must exceed a millionth of the
    larger of target and largest gap.

    Of more than 200 rows only those are factored that have a multiplier or are violated on the way.
    The residuals are over all rows. So are the checks of `gram`, except for its eigenvalues: an
    indefinite matrix is refused if the factored rows show it.

    Args:
        gram: inner products [m, m] of rows of any length, zeros included. They are exact to
            float64, or to float32 if no rows nearly depend on each other. It is not copied.
        gaps: violation of each constraint at the target [m].
        target_length: length of the target if known. Gaps within its rounding count as zero.
        solver: a QP solver that qpsolvers finds and that is tried first, or "exact".

    Raises:
        AggregationError: shapes do not fit, a number is not finite, or the matrix is not symmetric
            or not positive semidefinite, up to rounding.
        ConfigError: the solver is not installed.

    >>> import numpy as np
    >>> solve_dual(np.diag([4.0, 1.0]), np.array([2.0, -1.0])).multipliers.round(6).tolist()
    [0.5, 0.0]
    """
    m = np.size(gaps)
    gram, gaps = _checked("gram", gram, (m, m)), _checked("gaps", gaps, (m,))
    target_length = float(_checked("target_length", target_length, ()))
    lengths = np.sqrt(np.maximum(np.diag(gram), 0.0))
    _check_products(gram, lengths)
    unit_gaps = _per_length("gaps", gaps, lengths)
    size = float(max(target_length, unit_gaps.max(initial=0.0)))
    answer, gains = solve_with_working_set(gram, lengths, gaps, unit_gaps / (size or 1.0), solver)

    slack = size * gains - unit_gaps
    reach = size * max(1.0, float(np.linalg.norm(answer.push)))
    below = float(np.maximum(-answer.multipliers, 0.0).max(initial=0.0))
    return DualSolution(**_shared_fields(answer, lengths, size, slack, below, reach))


def _check_products(gram: Matrix, lengths: Vector) -> None:
    """Check that a matrix [m, m] is symmetric and that no product exceeds its rows' lengths.

    Raises:
        AggregationError: it is not a Gram matrix. The message names the rows.
    """
    for start in range(0, len(gram), ROWS_PER_BAND):
        band = slice(start, start + ROWS_PER_BAND)
        bounds = np.outer(lengths[band], lengths[start:])
        these, those = gram[band, start:], gram[start:, band].T
        odd = (np.abs(these) > bounds * (1 + PRODUCT_TOLERANCE)) | (
            np.abs(these - those) > bounds * PRODUCT_TOLERANCE
        )
        if odd.any():
            i, j = start + np.argwhere(odd)[0]
            raise AggregationError(
                f"expected inner products in gram, got {gram[i, j]} and {gram[j, i]} for rows {i} "
                f"and {j} with the squares {gram[i, i]} and {gram[j, j]}; build it with "
                "inner_products"
            )


def _shared_fields(
    answer: Solution, lengths: Vector, size: float, slack: Vector, dual: float, reach: float
) -> dict[str, Any]:
    """Return the fields that both results share, in the caller's units.

    Args:
        answer: the solution for unit rows, in the problem's own size.
        lengths: lengths of the rows [m].
        size: the problem's size.
        slack: slack of each constraint at the point [m].
        dual: the dual residual in the caller's units.
        reach: the size that the residuals are divided by.
    """
    reach = reach or 1.0
    pulls = size * answer.multipliers
    multipliers = np.divide(pulls, lengths, out=np.zeros_like(pulls), where=lengths > 0)
    return {
        "multipliers": multipliers,
        "feasible": answer.feasible,
        "residuals": Residuals(
            primal=float(np.maximum(-slack, 0.0).max(initial=0.0)) / reach,
            dual=dual / reach,
            complementarity=float(np.abs(pulls / reach * (slack / reach)).max(initial=0.0)),
        ),
        "decided_by": answer.decided_by,
        "conflict": answer.conflict,
    }


def _checked(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return an argument as float64, of the given shape, with finite numbers.

    Raises:
        AggregationError: it is something else. The message names the argument and the row.
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise AggregationError(f"expected numbers in {name}: {error}") from None
    if array.shape != shape:
        raise AggregationError(f"expected {name} of the shape {shape}, got {array.shape}")
    if not -MAX_MAGNITUDE <= array.min(initial=0.0) <= array.max(initial=0.0) <= MAX_MAGNITUDE:
        place = tuple(np.argwhere(~(np.abs(array) <= MAX_MAGNITUDE))[0])
        where = f" in row {place[0]}; leave out the client that sent it" if place else ""
        raise AggregationError(
            f"expected finite numbers within {MAX_MAGNITUDE:g} in {name}, got {array[place]}{where}"
        )
    return array


def _per_length(name: str, values: Vector, lengths: Vector) -> Vector:
    """Return values / lengths [m]. A satisfied row of zeros gets -1, which is no constraint."""
    with np.errstate(over="ignore"):
        scaled = np.divide(values, lengths, out=np.full_like(values, -1.0), where=lengths > 0)
    return _checked(f"{name} over the lengths of their rows", scaled, values.shape)
