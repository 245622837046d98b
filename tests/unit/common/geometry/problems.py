"""Ugly projection problems whose feasibility is known, and a reference that shares no code.

Feasible ones are built around a point that satisfies them (or are cones, or have independent
rows); infeasible ones have 0 inside the convex hull of rows with positive floors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import quadprog
from scipy.optimize import nnls

from common.rng import stream
from common.types import Matrix, Vector

SIZES = [(1, 1), (1, 5000), (120, 1), (120, 120), (120, 5000), (2, 2), (70, 3)]  # m, d


@dataclass(frozen=True)
class Problem:
    """min |x - target| subject to normals_k . x >= floors_k, and whether that is possible."""

    target: Vector
    normals: Matrix
    floors: Vector
    feasible: bool = True

    def units(self) -> tuple[Matrix, Vector]:
        """Return the rows at length 1 (zero rows as they are) and the floors that go with them."""
        lengths = np.linalg.norm(self.normals, axis=1)
        lengths[lengths == 0] = 1.0
        return self.normals / lengths[:, None], self.floors / lengths

    def size(self, point: Vector) -> float:
        """Return the length to which errors at `point` are relative."""
        return float(max(np.linalg.norm(self.target), np.linalg.norm(point)))

    def ordered(self, order: Vector) -> "Problem":
        """Return the problem with its constraints in another order, or with some repeated."""
        return Problem(self.target, self.normals[order], self.floors[order], self.feasible)

    def scaled(self, rows: Vector, whole: float) -> "Problem":
        """Return the same problem with rows of other lengths and in another unit of length."""
        floors = self.floors * rows * whole
        return Problem(self.target * whole, self.normals * rows[:, None], floors, self.feasible)


Rng = np.random.Generator
Family = Callable[[Rng, int, int], Problem]


def unit(rows: Vector) -> Vector:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def gaussian(rng: Rng, m: int, d: int) -> Matrix:
    return unit(rng.normal(size=(m, d)))


def around_a_point(rng: Rng, rows: Matrix, slack: float = 1.0, tight: float = 0.3) -> Problem:
    """Floors that one point satisfies, some of them exactly; the target is somewhere else."""
    point, away = rng.normal(size=(2, rows.shape[1]))
    margins = slack * rng.exponential(size=len(rows)) * (rng.random(len(rows)) >= tight)
    return Problem(away * rng.choice([0.1, 1.0, 10.0]), rows, rows @ point - margins)


def clients(rng: Rng, m: int, d: int) -> Problem:
    """FedPCD's own: independent unit updates, the unit mean, floors tau * |u|^2."""
    d = max(d, m + 1)
    rows = unit(rng.normal(size=(m, d)) + rng.choice([0.0, 0.3, 2.0]) * rng.normal(size=d))
    mean = unit(rng.dirichlet(np.full(m, 0.5)) @ rows)
    return Problem(mean, rows, np.full(m, rng.choice([0.0, 0.02, 0.25, 1.0])))


def interior(rng: Rng, m: int, d: int) -> Problem:
    return around_a_point(rng, gaussian(rng, m, d), tight=0.0)


def boundary(rng: Rng, m: int, d: int) -> Problem:
    return around_a_point(rng, gaussian(rng, m, d))


def rank_deficient(rng: Rng, m: int, d: int) -> Problem:
    rank = int(rng.integers(1, min(m, d) + 1))
    return around_a_point(rng, unit(rng.normal(size=(m, rank)) @ rng.normal(size=(rank, d))))


def nearly_parallel(rng: Rng, m: int, d: int) -> Problem:
    """Up to three bundles of rows at angles of about 1e-6."""
    axes = gaussian(rng, int(rng.integers(1, 4)), d)
    rows = unit(axes[rng.integers(len(axes), size=m)] + 1e-6 * gaussian(rng, m, d))
    return around_a_point(rng, rows, slack=rng.choice([1e-6, 1.0]))


def nearly_parallel_clients(rng: Rng, m: int, d: int) -> Problem:
    """Two camps of clients at angles of about 1e-6, floors tau."""
    d = max(d, 4)
    rows = unit(gaussian(rng, 2, d)[rng.integers(2, size=m)] + 1e-6 * gaussian(rng, m, d))
    return Problem(gaussian(rng, 1, d)[0], rows, np.full(m, rng.choice([0.0, 0.02, 0.25, 1.0])))


def opposed(rng: Rng, m: int, d: int) -> Problem:
    """Pairs of opposed rows: slabs, some of them thin."""
    half = gaussian(rng, (m + 1) // 2, d)
    rows = np.concatenate([half, -half])
    return around_a_point(rng, rows, slack=rng.choice([1e-3, 1.0]), tight=0.0)


def nearly_opposed(rng: Rng, m: int, d: int) -> Problem:
    """Wedges of an angle of about 1e-5."""
    half = gaussian(rng, (m + 1) // 2, max(d, 3))
    return around_a_point(
        rng, np.concatenate([half, unit(1e-5 * rng.normal(size=half.shape) - half)])
    )


def duplicates(rng: Rng, m: int, d: int) -> Problem:
    few = around_a_point(rng, gaussian(rng, m // 4 + 1, d))
    return few.ordered(rng.integers(len(few.floors), size=m))


def zero_rows(rng: Rng, m: int, d: int) -> Problem:
    rows = gaussian(rng, m, d) * (rng.random(m) < 0.7)[:, None]
    return around_a_point(rng, rows)


def crowd(rng: Rng, m: int, d: int) -> Problem:
    """Many more rows than dimensions."""
    return around_a_point(rng, gaussian(rng, m, min(d, 5)))


def cone(rng: Rng, m: int, d: int) -> Problem:
    """tau = 0 with more rows than dimensions: often nothing but 0 is left."""
    rows = gaussian(rng, m, min(d, 60))
    return Problem(gaussian(rng, 1, rows.shape[1])[0], rows, np.zeros(m))


def degenerate(rng: Rng, m: int, d: int) -> Problem:
    """Many rows are tight at the answer, and most of those have a multiplier of zero."""
    rows, target = gaussian(rng, m, d), rng.normal(size=d)
    pulls = np.where(rng.random(m) < 0.3, rng.exponential(size=m), 0.0)
    margins = np.where((pulls > 0) | (rng.random(m) < 0.7), 0.0, rng.exponential(size=m))
    return Problem(target, rows, rows @ (target + pulls @ rows) - margins)


def zero_in_the_hull(rng: Rng, m: int, d: int) -> Problem:
    """A positive combination of some rows is zero, and every floor is tau > 0."""
    m = max(m, 2)
    rows, rank = rng.normal(size=(m, d)), int(rng.integers(1, min(m, d + 1)))
    rows[rank] = -(rng.uniform(0.05, 1.0, size=rank) @ rows[:rank])
    floors = np.full(m, rng.choice([0.02, 0.25, 1.0]))
    return Problem(rng.normal(size=d), unit(rows), floors, feasible=False)


def gap_between_opposed(rng: Rng, m: int, d: int) -> Problem:
    """Two opposed rows of which one asks for more than the other allows."""
    problem = boundary(rng, max(m, 2), d)
    problem.normals[1] = -problem.normals[0]
    problem.floors[1] = rng.choice([0.01, 1.0]) - problem.floors[0]
    return Problem(problem.target, problem.normals, problem.floors, feasible=False)


def zero_row_that_asks(rng: Rng, m: int, d: int) -> Problem:
    rows = gaussian(rng, m, d)
    rows[0] = 0.0
    return Problem(rng.normal(size=d), rows, np.full(m, 0.1), feasible=False)


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        clients,
        interior,
        boundary,
        rank_deficient,
        nearly_parallel,
        nearly_parallel_clients,
        opposed,
        nearly_opposed,
        duplicates,
        zero_rows,
        crowd,
        cone,
        degenerate,
        zero_in_the_hull,
        gap_between_opposed,
        zero_row_that_asks,
    )
}


def problems(family: str, count: int) -> Iterator[Problem]:
    """Yield `count` problems; half have row lengths, a third have units, from 1e-12 to 1e12."""
    for k in range(count):
        rng = stream(7, "projection problems", family, k)
        m, d = int(rng.integers(1, 121)), int(5001 ** rng.random())
        if rng.random() < 0.3:
            m = int(rng.integers(1, 6))
        m, d = SIZES[k] if k < len(SIZES) else (m, d)
        problem = FAMILIES[family](rng, m, d)
        rows, whole = 10.0 ** rng.uniform(-12, 12, size=len(problem.floors)), 1.0
        if rng.random() < 0.5:
            rows[:] = 1.0
        if rng.random() < 0.3:
            whole = 10.0 ** rng.uniform(-12, 12)
        yield problem.scaled(rows, whole).ordered(rng.permutation(len(problem.floors)))


def reference(problem: Problem) -> Vector | None:
    """Return the answer of quadprog (Goldfarb, Idnani) in the rows' own singular coordinates.

    Where quadprog gives up, Lawson and Hanson's least-distance program by NNLS answers; None if
    both find nothing. Rows of zeros must have been content.
    """
    units, levels = problem.units()
    _, values, axes = np.linalg.svd(units, full_matrices=False)
    rows, gaps = units @ axes.T, levels - units @ problem.target
    size = max(float(np.linalg.norm(problem.target)), float(gaps.max()))
    try:
        k = len(values)
        inside = quadprog.solve_qp(np.eye(k), np.zeros(k), rows.T, gaps / size)[0]
    except ValueError:
        stacked = np.vstack([rows.T, gaps / size])
        wanted = np.append(np.zeros(len(values)), 1.0)
        rest = stacked @ nnls(stacked, wanted, maxiter=10_000)[0] - wanted
        if np.linalg.norm(rest) < 1e-7:
            return None
        inside = -rest[:-1] / rest[-1]
    point: Vector = problem.target + size * (inside @ axes)
    return point
