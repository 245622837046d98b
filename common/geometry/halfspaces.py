"""The nearest point that satisfies m linear constraints, found in the space of the constraints.

With unit rows u_k, a target t and what each row lacks there, b_k = floor_k - u_k . t, the point
is t + z, where z solves the least-distance problem

    min 1/2 |z|^2  subject to  F^T z >= b,    F [k, m] with F^T F the Gram matrix of the rows,

whose dual is  min 1/2 |F mu|^2 - b . mu,  mu >= 0,  with z = F mu. F comes straight from the rows
(QR) where they are at hand, so that the conditioning of the problem is not squared, and from
their Gram matrix where only that exists.

A QP solver proposes which constraints are tight. They are then solved as equations, and the
result counts only if it meets every optimality condition. Otherwise the dual active-set method
decides (Goldfarb, Idnani: A numerically stable dual method for solving strictly convex quadratic
programs, 1983). "Infeasible" is never a solver's word: it comes with a conflict, weights
lambda >= 0 with F lambda = 0 and b . lambda > 0, which no z can survive (Farkas).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.errors import AggregationError, ConfigError, did_you_mean
from common.types import Matrix, Vector

EXACT = "exact"  # the solver's name that goes straight to the active-set method
SETTINGS: Mapping[str, dict[str, Any]] = {
    "osqp": {
        "eps_abs": 1e-9,
        "eps_rel": 1e-9,
        "max_iter": 2000,
        "polishing": False,  # we polish its active set ourselves, and its own prints to stdout
        "raise_error": False,
    }
}
LARGEST = 1e150  # number that may come in: its square still exists
TURNS = 20  # constraints let in, per constraint, before the active-set method gives up
ROUNDING = 1e-14  # of a dot product of unit vectors in float64, with room
FLOAT32 = 1e-7  # what is left of a sum of unit rows that is zero, once they are in float32
FAINT = 10  # blurs that the floors of a conflict must exceed to count
LOOSE = 1000  # blurs that the worst violation must exceed where only a faint conflict is left
INDEFINITE = 1e-6  # how far below zero, per row, an eigenvalue of a unit Gram matrix may be


@dataclass(frozen=True)
class Residuals:
    """How far an answer is from optimal, for unit rows and relative to the problem's size.

    Attributes:
        primal: the worst violation of a constraint.
        dual: the length of point - target - normals^T multipliers; where there is no point, the
            worst multiplier below zero.
        complementarity: the largest |multiplier * slack|.
    """

    primal: float
    dual: float
    complementarity: float

    def largest(self) -> float:
        """Return the worst of the three."""
        return max(self.primal, self.dual, self.complementarity)


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """The multipliers of a projection, and what they are worth.

    Attributes:
        multipliers: mu [m] >= 0; all zero if nothing is violated, or if no point satisfies all.
        feasible: whether some point satisfies all constraints.
        residuals: of this answer; if it is not feasible, those of the target as it is.
        decided_by: "nothing to do", "a row of zeros", the QP solver's name or "dual active set".
        conflict: lambda [m] >= 0, adding up to 1, with sum_k lambda_k u_k = 0 for the unit rows
            u_k and a positive weighted floor: the rows that cannot all have their way. Zeros if
            feasible.
    """

    multipliers: Vector
    feasible: bool
    residuals: Residuals
    decided_by: str
    conflict: Vector

    @property
    def active(self) -> NDArray[np.intp]:
        """The constraints with a positive multiplier, in order."""
        return np.flatnonzero(self.multipliers)


@dataclass(frozen=True, kw_only=True)
class Projection(Multipliers):
    """The nearest point of the intersection, point [d] = target + normals^T multipliers."""

    point: Vector


@dataclass(frozen=True)
class _Program:
    """F [k, m] with columns of length 1 or 0, and b [m] <= 1: the problem in its own size.

    A combination of columns with weights that add up to 1 may be zero if it is shorter than
    `blur`.
    """

    factor: Matrix
    gaps: Vector
    blur: float

    def lack(self, push: Vector) -> Vector:
        """Return what each constraint [m] lacks at z [k], beyond rounding."""
        room = ROUNDING * (1.0 + np.abs(self.gaps) + np.linalg.norm(push))
        lack: Vector = self.gaps - push @ self.factor - room
        return lack


@dataclass(frozen=True)
class _Tight:
    """Constraints held as equations, the z [k] they ask for, and their multipliers."""

    rows: tuple[int, ...]
    push: Vector
    held: Vector


@dataclass(frozen=True)
class _Answer:
    """z [k] and mu [m] of a program, whether it is feasible, and the conflict [m] if not."""

    push: Vector
    multipliers: Vector
    decided_by: str
    feasible: bool
    conflict: Vector


def project_onto_halfspaces(
    target: Vector, normals: Matrix, floors: Vector, *, solver: str = "osqp"
) -> Projection:
    """Return the point nearest to `target` with normals_k . point >= floors_k for all k.

    Rows are normalised first and the problem is scaled by its own size, so neither the rows'
    lengths nor the units matter. A row of zeros asks for 0 >= floor. If nothing is violated
    beyond rounding, or no point satisfies all, the target itself comes back.

    Args:
        target: [d].
        normals: [m, d], small enough to factor; `least_multipliers` is for long rows.
        floors: [m].
        solver: a QP solver that qpsolvers has, asked first; or "exact".

    Raises:
        AggregationError: shapes that do not fit, or a number that is not finite.
        ConfigError: no such solver.
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
    program = _Program(factor, gaps / (size or 1.0), blur=10 * ROUNDING)
    answer = _decided(program, floors, lengths, solver)

    point = target + size * (basis @ answer.push) if answer.multipliers.any() else target
    drift = np.linalg.norm(point - target - size * (answer.multipliers @ units))
    slack = units @ point - levels
    reach = max(size, float(np.linalg.norm(point)))
    return Projection(point=point, **_common(answer, lengths, size, slack, float(drift), reach))


def least_multipliers(
    gram: Matrix, gaps: Vector, *, target_length: float = 0.0, solver: str = "osqp"
) -> Multipliers:
    """Return the mu >= 0 that minimises 1/2 mu^T gram mu - gaps . mu.

    With gram = A A^T and gaps = floors - A target these are the multipliers of the projection of
    the target onto {x : A x >= floors}, for rows that are too long to be factored.

    A Gram matrix knows lengths only down to the root of its own rounding. Rows are therefore
    called in conflict if weights that add up to 1 bring the unit rows to within 1e-7 of zero
    (which is also what is left of an exact conflict after the rows were rounded to float32) while
    they ask for more than a millionth of the larger of target and largest gap.

    Args:
        gram: inner products [m, m] in float64; rows of any length, zeros included.
        gaps: what each row [m] lacks at the target.
        target_length: of the target, if known; gaps within rounding of it count as no gap.
        solver: a QP solver that qpsolvers has, asked first; or "exact".

    Raises:
        AggregationError: shapes that do not fit, a number that is not finite, or a matrix that
            is not symmetric and positive semidefinite up to rounding.
        ConfigError: no such solver.
    """
    m = np.size(gaps)
    gram, gaps = _checked("gram", gram, (m, m)), _checked("gaps", gaps, (m,))
    lengths = np.sqrt(np.maximum(np.diag(gram), 0.0))
    unit, factor, noise = _factored(gram, lengths)
    unit_gaps = _per_length("gaps", gaps, lengths)
    size = float(max(target_length, unit_gaps.max(initial=0.0)))
    blur = max(FLOAT32, np.sqrt(noise))
    program = _Program(factor, unit_gaps / (size or 1.0), blur=blur)
    answer = _decided(program, gaps, lengths, solver)

    slack = unit @ (size * answer.multipliers) - unit_gaps
    reach = size * max(1.0, float(np.linalg.norm(answer.push)))
    below = float(np.maximum(-answer.multipliers, 0.0).max(initial=0.0))
    return Multipliers(**_common(answer, lengths, size, slack, below, reach))


def _decided(program: _Program, floors: Vector, lengths: Vector, solver: str) -> _Answer:
    """Ask, in this order: is there anything to do, can it be done, the solver, the exact method."""
    m = program.gaps.size
    _check_solver(solver)
    idle = _Answer(np.zeros(len(program.factor)), np.zeros(m), "nothing to do", True, np.zeros(m))
    hopeless = np.flatnonzero((lengths == 0) & (floors > 0))
    if hopeless.size:
        conflict = np.zeros(m)
        conflict[hopeless[0]] = 1.0
        return replace(idle, decided_by="a row of zeros", feasible=False, conflict=conflict)
    if (program.lack(idle.push) <= 0).all():
        return idle
    proposed = None if solver == EXACT else _by_solver(program, solver)
    return proposed or _by_active_set(program)


def _by_solver(program: _Program, solver: str) -> _Answer | None:
    """Let a QP solver say which constraints are tight; None if its word is not good enough."""
    from qpsolvers import Problem, solve_problem  # here, so that clients need not load it

    m = program.gaps.size
    gram = program.factor.T @ program.factor
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = Problem(gram, -program.gaps, lb=np.zeros(m))
            found = solve_problem(problem, solver, **SETTINGS.get(solver, {})).x
    except Exception:  # whatever a foreign solver trips over, the exact method decides
        return None
    if found is None or not (np.abs(found) <= LARGEST).all():
        return None
    tight = np.flatnonzero(found > np.abs(gram @ found - program.gaps)).tolist()
    if not _independent(program, tight):
        return None
    push, held = _hold(program, tight)
    if (held < 0).any() or (program.lack(push) > 0).any():
        return None
    multipliers = np.zeros(m)
    multipliers[tight] = held
    return _Answer(push, multipliers, solver, True, np.zeros(m))


def _independent(program: _Program, rows: list[int]) -> bool:
    """Say whether no combination of some rows comes near enough to zero to be a conflict."""
    spread = np.linalg.svd(program.factor[:, rows], compute_uv=False)
    return len(spread) == len(rows) and bool(spread.min(initial=1.0) > program.blur * len(rows))


def _by_active_set(program: _Program) -> _Answer:
    """Let the most violated constraint in until none is left, or until one cannot get in."""
    m = program.gaps.size
    state = _Tight((), *_hold(program, ()))
    answer = _Answer(state.push, np.zeros(m), "dual active set", False, np.zeros(m))
    barred = np.zeros(m, dtype=bool)  # rows in a conflict too faint to be told from rounding
    for _ in range(TURNS * m):
        lack = np.where(barred, -np.inf, program.lack(state.push))
        lack[list(state.rows)] = -np.inf
        worst = int(lack.argmax())
        if lack[worst] <= 0:
            break
        state, conflict = _let_in(program, state, worst)
        if conflict is not None:
            answer, barred[worst] = replace(answer, conflict=conflict), True
            if conflict @ program.gaps > FAINT * program.blur:
                return answer

    loose = LOOSE * program.blur * (1.0 + np.linalg.norm(state.push))
    if (program.lack(state.push) > loose).any():
        return answer
    multipliers = np.zeros(m)
    multipliers[list(state.rows)] = np.maximum(state.held, 0.0)  # zero, bar the last bit
    return _Answer(state.push, multipliers, "dual active set", True, np.zeros(m))


def _let_in(program: _Program, state: _Tight, new: int) -> tuple[_Tight, Vector | None]:
    """Make constraint `new` tight, letting go of those in its way; or return the conflict [m]."""
    rows, push, held = list(state.rows), state.push, state.held
    column = program.factor[:, new]
    while True:
        basis, triangle = np.linalg.qr(program.factor[:, rows])
        rest = column - basis @ (basis.T @ column)
        ratios = np.linalg.solve(triangle, basis.T @ column)
        length, total = float(np.linalg.norm(rest)), 1.0 + float(np.abs(ratios).sum())
        lack = float(program.gaps[new] - column @ push)

        stops = np.full(len(rows), np.inf)
        np.divide(held, ratios, out=stops, where=ratios > program.blur)
        first = int(stops.argmin()) if rows else -1
        stop = float(stops[first]) if rows else np.inf
        if stop == np.inf and length <= program.blur * total:
            against = np.zeros(program.gaps.size)
            against[[*rows, new]] = [*np.maximum(-ratios, 0.0), 1.0]
            return state, against / against.sum()
        reached = lack / length**2 if length > ROUNDING * total else np.inf
        if reached <= stop:
            return _Tight((*rows, new), *_hold(program, [*rows, new])), None
        push, held = push + stop * rest, held - stop * ratios
        rows, held = rows[:first] + rows[first + 1 :], np.delete(held, first)


def _hold(program: _Program, rows: Sequence[int]) -> tuple[Vector, Vector]:
    """Return the shortest z [k] that meets independent rows exactly, and their multipliers."""
    index = list(rows)
    basis, triangle = np.linalg.qr(program.factor[:, index])
    inside = np.linalg.solve(triangle.T, program.gaps[index])
    return basis @ inside, np.linalg.solve(triangle, inside)


def _common(
    answer: _Answer, lengths: Vector, size: float, slack: Vector, dual: float, reach: float
) -> dict[str, Any]:
    """Return the fields that both results share, in the caller's units."""
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


def _factored(gram: Matrix, lengths: Vector) -> tuple[Matrix, Matrix, float]:
    """Return the unit Gram matrix [m, m], F [m, m], and how much of an eigenvalue is rounding."""
    m = len(gram)
    bounds = np.outer(lengths, lengths)
    odd = (np.abs(gram) > bounds * (1 + INDEFINITE)) | (np.abs(gram - gram.T) > bounds * INDEFINITE)
    if odd.any():
        i, j = np.argwhere(odd)[0]
        raise AggregationError(
            f"expected inner products in gram, got {gram[i, j]} and {gram[j, i]} for rows {i} and "
            f"{j} with the squares {gram[i, i]} and {gram[j, j]}; build it with inner_products"
        )
    unit = np.divide(gram, bounds, out=np.zeros_like(bounds), where=bounds > 0)
    values, vectors = np.linalg.eigh((unit + unit.T) / 2)
    if values.min(initial=0.0) < -INDEFINITE * m:
        raise AggregationError(
            f"expected a positive semidefinite gram, got the eigenvalue {values.min()} with its "
            "rows at unit length; build it with inner_products"
        )
    noise = m * np.finfo(np.float64).eps * float(values.max(initial=0.0))
    return unit, np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T, noise


def _check_solver(solver: str) -> None:
    """Refuse a solver that is not installed."""
    from qpsolvers import available_solvers

    known = [EXACT, *available_solvers]
    if solver not in known:
        raise ConfigError(
            f'expected one of the solvers {", ".join(known)}, got "{solver}"'
            + did_you_mean(solver, known)
        )


def _checked(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return a float64 copy of an argument of the given shape, every number finite."""
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise AggregationError(f"expected {name} of the shape {shape}, got {array.shape}")
    bad = np.argwhere(~(np.abs(array) <= LARGEST))
    if bad.size:
        raise AggregationError(
            f"expected finite numbers within {LARGEST:g} in {name}, "
            f"got {array[tuple(bad[0])]} in row {bad[0][0]}; leave out whoever sent it"
        )
    return array


def _per_length(name: str, values: Vector, lengths: Vector) -> Vector:
    """Return values / lengths [m]; a row of zeros that is content gets -1, which asks nothing."""
    with np.errstate(over="ignore"):
        scaled = np.divide(values, lengths, out=np.full_like(values, -1.0), where=lengths > 0)
    return _checked(f"{name} over the lengths of their rows", scaled, values.shape)
