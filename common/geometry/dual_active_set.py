"""The shortest z [k] with F^T z >= b, by a QP solver or a dual active-set method.

The QP solver proposes which constraints are active. They are solved as equations, and the result is
used only if it meets every optimality condition. Otherwise the dual active-set method solves the
program (Goldfarb, Idnani: A numerically stable dual method for solving strictly convex quadratic
programs, 1983). "Infeasible" never comes from a solver. It comes with a conflict: weights
lambda >= 0 with F lambda = 0 and b . lambda > 0, which prove that no z exists (Farkas).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from common.errors import ConfigError, did_you_mean
from common.types import Matrix, Vector

EXACT = "exact"  # name that selects the active-set method without a QP solver
SETTINGS: Mapping[str, dict[str, Any]] = {
    "osqp": {
        "eps_abs": 1e-9,
        "eps_rel": 1e-9,
        "max_iter": 2000,
        "polishing": False,  # its active set is solved exactly here, and its polishing prints
        "raise_error": False,
    }
}
# Constraints added, per constraint, before the active-set method gives up.
MAX_STEPS_PER_CONSTRAINT = 20
ROUNDING = 1e-14  # error of an inner product of unit vectors in float64, with a margin
MAX_MAGNITUDE = 1e150  # largest input, so that its square is finite
CONFLICT_FACTOR = 10  # times the tolerance: least weighted gap of a certain conflict
# Times the tolerance: a larger violation makes an uncertain conflict count.
FEASIBLE_FACTOR = 1000


@dataclass(frozen=True)
class LeastDistanceProgram:
    """A least-distance program, scaled by its own size.

    Attributes:
        factor: F [k, m], with columns of length 1 or 0.
        gaps: b [m] <= 1.
        tolerance: a combination of columns whose weights add up to 1 counts as zero below this
            length.
    """

    factor: Matrix
    gaps: Vector
    tolerance: float

    def violations(self, push: Vector) -> Vector:
        """Return the violation of each constraint [m] at z [k], beyond rounding."""
        tolerance = ROUNDING * (1.0 + np.abs(self.gaps) + np.linalg.norm(push))
        violations: Vector = self.gaps - push @ self.factor - tolerance
        return violations


@dataclass(frozen=True)
class ActiveSet:
    """Constraints held as equations.

    Attributes:
        rows: indices of the active constraints.
        push: the shortest z [k] that meets them.
        held: their multipliers.
    """

    rows: tuple[int, ...]
    push: Vector
    held: Vector


@dataclass(frozen=True)
class Solution:
    """The solution of a program.

    Attributes:
        push: z [k].
        multipliers: mu [m].
        decided_by: name of the method that decided.
        feasible: whether some z meets all constraints.
        conflict: lambda [m] if not feasible, else zeros.
    """

    push: Vector
    multipliers: Vector
    decided_by: str
    feasible: bool
    conflict: Vector


def solve_least_distance(
    program: LeastDistanceProgram, floors: Vector, lengths: Vector, solver: str
) -> Solution:
    """Return the solution of a program.

    Args:
        program: the program in unit rows.
        floors: lower bounds of the constraints [m]. Only their signs matter, for rows of zeros.
        lengths: lengths of the rows before they were scaled to 1 [m].
        solver: a QP solver to try first, or `EXACT`.

    Raises:
        ConfigError: the solver is not installed.
    """
    m = program.gaps.size
    check_solver(solver)
    idle = Solution(np.zeros(len(program.factor)), np.zeros(m), "nothing to do", True, np.zeros(m))
    hopeless = np.flatnonzero((lengths == 0) & (floors > 0))
    if hopeless.size:
        conflict = np.zeros(m)
        conflict[hopeless[0]] = 1.0
        return replace(idle, decided_by="a row of zeros", feasible=False, conflict=conflict)
    if (program.violations(idle.push) <= 0).all():
        return idle
    proposal = None if solver == EXACT else _solve_with_qp_solver(program, solver)
    return proposal or _solve_with_active_set(program)


def solve_qp(solver: str, *terms: Any, **bounds: Any) -> Vector | None:
    """Return the result of a QP solver, or None if it fails.

    Args:
        solver: name of a solver that qpsolvers finds.
        terms: P and q of a `qpsolvers.Problem`.
        bounds: its constraints by name.
    """
    from qpsolvers import Problem, solve_problem  # here, because clients do not need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = Problem(*terms, **bounds)
            result: Vector | None = solve_problem(problem, solver, **SETTINGS.get(solver, {})).x
    except Exception:  # a solver can fail in any way, and then the active-set method decides
        return None
    return None if result is None or not (np.abs(result) <= MAX_MAGNITUDE).all() else result


def _solve_with_qp_solver(program: LeastDistanceProgram, solver: str) -> Solution | None:
    """Let a QP solver choose the active constraints. None if they are not optimal."""
    m = program.gaps.size
    gram = program.factor.T @ program.factor
    dual = solve_qp(solver, gram, -program.gaps, lb=np.zeros(m))
    if dual is None:
        return None
    active = np.flatnonzero(dual > np.abs(gram @ dual - program.gaps)).tolist()
    if not _independent(program, active):
        return None
    push, held = _solve_equations(program, active)
    if (held < 0).any() or (program.violations(push) > 0).any():
        return None
    multipliers = np.zeros(m)
    multipliers[active] = held
    return Solution(push, multipliers, solver, True, np.zeros(m))


def _independent(program: LeastDistanceProgram, rows: list[int]) -> bool:
    """Return whether no combination of these rows is near enough to zero to be a conflict."""
    spread = np.linalg.svd(program.factor[:, rows], compute_uv=False)
    return len(spread) == len(rows) and bool(
        spread.min(initial=1.0) > program.tolerance * len(rows)
    )


def _solve_with_active_set(program: LeastDistanceProgram) -> Solution:
    """Add the most violated constraint until none is violated, or one cannot be met."""
    m = program.gaps.size
    state = ActiveSet((), *_solve_equations(program, ()))
    answer = Solution(state.push, np.zeros(m), "dual active set", False, np.zeros(m))
    barred = np.zeros(m, dtype=bool)  # rows in a conflict that may be rounding
    for _ in range(MAX_STEPS_PER_CONSTRAINT * m):
        lack = np.where(barred, -np.inf, program.violations(state.push))
        lack[list(state.rows)] = -np.inf
        worst = int(lack.argmax())
        if lack[worst] <= 0:
            break
        state, conflict = _add_constraint(program, state, worst)
        if conflict is not None:
            answer, barred[worst] = replace(answer, conflict=conflict), True
            if conflict @ program.gaps > CONFLICT_FACTOR * program.tolerance:
                return answer

    loose = FEASIBLE_FACTOR * program.tolerance * (1.0 + np.linalg.norm(state.push))
    if (program.violations(state.push) > loose).any():
        return answer
    multipliers = np.zeros(m)
    multipliers[list(state.rows)] = np.maximum(state.held, 0.0)  # removes rounding below zero
    return Solution(state.push, multipliers, "dual active set", True, np.zeros(m))


def _add_constraint(
    program: LeastDistanceProgram, state: ActiveSet, new: int
) -> tuple[ActiveSet, Vector | None]:
    """Make a constraint active and drop those that block it.

    Args:
        program: the program.
        state: the active constraints.
        new: index of the constraint to add.

    Returns:
        The new active set and None, or the old one and the conflict [m] that prevents the
        constraint.
    """
    rows, push, held = list(state.rows), state.push, state.held
    column = program.factor[:, new]
    while True:
        basis, triangle = np.linalg.qr(program.factor[:, rows])
        rest = column - basis @ (basis.T @ column)
        ratios = np.linalg.solve(triangle, basis.T @ column)
        length, total = float(np.linalg.norm(rest)), 1.0 + float(np.abs(ratios).sum())
        lack = float(program.gaps[new] - column @ push)

        stops = np.full(len(rows), np.inf)
        np.divide(held, ratios, out=stops, where=ratios > program.tolerance)
        first = int(stops.argmin()) if rows else -1
        stop = float(stops[first]) if rows else np.inf
        if stop == np.inf and length <= program.tolerance * total:
            against = np.zeros(program.gaps.size)
            against[[*rows, new]] = [*np.maximum(-ratios, 0.0), 1.0]
            return state, against / against.sum()
        reached = lack / length**2 if length > ROUNDING * total else np.inf
        if reached <= stop:
            return ActiveSet((*rows, new), *_solve_equations(program, [*rows, new])), None
        push, held = push + stop * rest, held - stop * ratios
        rows, held = rows[:first] + rows[first + 1 :], np.delete(held, first)


def _solve_equations(program: LeastDistanceProgram, rows: Sequence[int]) -> tuple[Vector, Vector]:
    """Return the shortest z [k] that meets independent rows exactly, and its multipliers."""
    index = list(rows)
    basis, triangle = np.linalg.qr(program.factor[:, index])
    inside = np.linalg.solve(triangle.T, program.gaps[index])
    return basis @ inside, np.linalg.solve(triangle, inside)


def check_solver(solver: str) -> None:
    """Check that a solver is installed.

    Raises:
        ConfigError: it is not. The message lists the installed solvers.
    """
    from qpsolvers import available_solvers

    known = [EXACT, *available_solvers]
    if solver not in known:
        raise ConfigError(
            f'solver "{solver}" is not installed; the installed ones are {", ".join(known)}'
            + did_you_mean(str(solver), known)
        )
