"""The shortest z [k] with F^T z >= b: a QP solver proposes, its answer is checked, or replaced.

The solver says which constraints are tight. They are then solved as equations, and the result
counts only if it meets every optimality condition. Otherwise the dual active-set method decides
(Goldfarb, Idnani: A numerically stable dual method for solving strictly convex quadratic programs,
1983). "Infeasible" is never a solver's word: it comes with a conflict, weights lambda >= 0 with
F lambda = 0 and b . lambda > 0, which no z can survive (Farkas).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from common.errors import ConfigError, did_you_mean
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
# constraints let in, per constraint, before the active-set method gives up
MAX_STEPS_PER_CONSTRAINT = 20
ROUNDING = 1e-14  # of a dot product of unit vectors in float64, with room
MAX_MAGNITUDE = 1e150  # number that may come in: its square still exists
CONFLICT_FACTOR = 10  # blurs that the floors of a conflict must exceed to count
# blurs that the worst violation must exceed where only a faint conflict is left
FEASIBLE_FACTOR = 1000


@dataclass(frozen=True)
class LeastDistanceProgram:
    """F [k, m] with columns of length 1 or 0, and b [m] <= 1: the problem in its own size.

    A combination of columns with weights that add up to 1 may be zero if it is shorter than
    `tolerance`.
    """

    factor: Matrix
    gaps: Vector
    tolerance: float

    def lack(self, push: Vector) -> Vector:
        """Return what each constraint [m] lacks at z [k], beyond rounding."""
        room = ROUNDING * (1.0 + np.abs(self.gaps) + np.linalg.norm(push))
        lack: Vector = self.gaps - push @ self.factor - room
        return lack


@dataclass(frozen=True)
class ActiveSet:
    """Constraints held as equations, the z [k] they ask for, and their multipliers."""

    rows: tuple[int, ...]
    push: Vector
    held: Vector


@dataclass(frozen=True)
class Solution:
    """z [k] and mu [m] of a program, whether it is feasible, and the conflict [m] if not."""

    push: Vector
    multipliers: Vector
    decided_by: str
    feasible: bool
    conflict: Vector


def solve_least_distance(
    program: LeastDistanceProgram, floors: Vector, lengths: Vector, solver: str
) -> Solution:
    """Ask, in this order: is there anything to do, can it be done, the solver, the exact method."""
    m = program.gaps.size
    check_solver(solver)
    idle = Solution(np.zeros(len(program.factor)), np.zeros(m), "nothing to do", True, np.zeros(m))
    hopeless = np.flatnonzero((lengths == 0) & (floors > 0))
    if hopeless.size:
        conflict = np.zeros(m)
        conflict[hopeless[0]] = 1.0
        return replace(idle, decided_by="a row of zeros", feasible=False, conflict=conflict)
    if (program.lack(idle.push) <= 0).all():
        return idle
    proposal = None if solver == EXACT else _solve_with_qp_solver(program, solver)
    return proposal or _solve_with_active_set(program)


def solve_qp(solver: str, *terms: Any, **bounds: Any) -> Vector | None:
    """Return what a QP solver says to a qpsolvers.Problem of these terms, None if it is nothing."""
    from qpsolvers import Problem, solve_problem  # here, so that clients need not load it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = Problem(*terms, **bounds)
            found: Vector | None = solve_problem(problem, solver, **SETTINGS.get(solver, {})).x
    except Exception:  # whatever a foreign solver trips over, the exact method decides
        return None
    return None if found is None or not (np.abs(found) <= MAX_MAGNITUDE).all() else found


def _solve_with_qp_solver(program: LeastDistanceProgram, solver: str) -> Solution | None:
    """Let a QP solver say which constraints are tight; None if its word is not good enough."""
    m = program.gaps.size
    gram = program.factor.T @ program.factor
    found = solve_qp(solver, gram, -program.gaps, lb=np.zeros(m))
    if found is None:
        return None
    tight = np.flatnonzero(found > np.abs(gram @ found - program.gaps)).tolist()
    if not _independent(program, tight):
        return None
    push, held = _solve_equations(program, tight)
    if (held < 0).any() or (program.lack(push) > 0).any():
        return None
    multipliers = np.zeros(m)
    multipliers[tight] = held
    return Solution(push, multipliers, solver, True, np.zeros(m))


def _independent(program: LeastDistanceProgram, rows: list[int]) -> bool:
    """Say whether no combination of some rows comes near enough to zero to be a conflict."""
    spread = np.linalg.svd(program.factor[:, rows], compute_uv=False)
    return len(spread) == len(rows) and bool(
        spread.min(initial=1.0) > program.tolerance * len(rows)
    )


def _solve_with_active_set(program: LeastDistanceProgram) -> Solution:
    """Let the most violated constraint in until none is left, or until one cannot get in."""
    m = program.gaps.size
    state = ActiveSet((), *_solve_equations(program, ()))
    answer = Solution(state.push, np.zeros(m), "dual active set", False, np.zeros(m))
    barred = np.zeros(m, dtype=bool)  # rows in a conflict too faint to be told from rounding
    for _ in range(MAX_STEPS_PER_CONSTRAINT * m):
        lack = np.where(barred, -np.inf, program.lack(state.push))
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
    if (program.lack(state.push) > loose).any():
        return answer
    multipliers = np.zeros(m)
    multipliers[list(state.rows)] = np.maximum(state.held, 0.0)  # zero, bar the last bit
    return Solution(state.push, multipliers, "dual active set", True, np.zeros(m))


def _add_constraint(
    program: LeastDistanceProgram, state: ActiveSet, new: int
) -> tuple[ActiveSet, Vector | None]:
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
    """Return the shortest z [k] that meets independent rows exactly, and their multipliers."""
    index = list(rows)
    basis, triangle = np.linalg.qr(program.factor[:, index])
    inside = np.linalg.solve(triangle.T, program.gaps[index])
    return basis @ inside, np.linalg.solve(triangle, inside)


def check_solver(solver: str) -> None:
    """Refuse a solver that is not installed."""
    from qpsolvers import available_solvers

    known = [EXACT, *available_solvers]
    if solver not in known:
        raise ConfigError(
            f'expected one of the solvers {", ".join(known)}, got "{solver}"'
            + did_you_mean(str(solver), known)
        )
