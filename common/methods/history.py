"""The last displacements of clients, and their inner products.

A method that compares the cohort with absent clients works on the small matrix of inner products.
The products of stored displacements are stored too: a round costs (new rows) x (all rows) x d
instead of (all rows)^2 x d.

Long float32 rows are multiplied in float32 where that is exact enough. Its error, about 1e-8 of the
lengths, is multiplied in the solution by 1 / (the least eigenvalue of the unit rows' products). The
products are computed in float64 if that eigenvalue is small, because some rows nearly depend on
each other; if squares leave the range of float32; or if numbers repeat, so that errors do not
cancel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from common.client_vectors import ClientVectors
from common.geometry import inner_products, lengths_and_scales
from common.types import ClientId, Cohort, Matrix, Vector

LONG = 2**18  # numbers in a row from which float32 is faster and its errors cancel
APART = 2e-2  # least eigenvalue for float32: errors of 2e-8 stay below 1e-6 in the solution
SAMPLES, PIECE = 16, 4096  # pieces of a row in the sample for its rounding, and their size
EVEN = 1e-7  # relative error of the sample's square that counts as noise
SHORTEST, LONGEST = 1e-12, 1e12  # lengths whose squares float32 can hold


@dataclass(frozen=True)
class CohortWithHistory:
    """The cohort and the absent clients of the history, with the next history.

    Attributes:
        clients: the clients of the displacements, the cohort's first [k].
        rows: the mean, then the clients' displacements in that order [1 + k], each [d].
        products: raw inner products of the rows [1 + k, 1 + k].
        compute_dtype: the dtype that is exact enough to add these rows up in.
        absent: number of clients that are not in the cohort. They are the last ones.
        history: the cohort and these absent clients.
    """

    clients: Sequence[ClientId]
    rows: Sequence[Vector]
    products: Matrix
    compute_dtype: DTypeLike
    absent: int
    history: "History"

    @property
    def mean(self) -> Vector:
        """The cohort's mean [d]."""
        return self.rows[0]


@dataclass(frozen=True)
class History:
    """The last displacement of every recently seen client, and their inner products.

    Attributes:
        seen: displacement [d] and round by client.
        rates: the local learning rate of each displacement, by client.
        products: raw inner products [k, k] of the displacements, in the order of `rates`.
        exact: whether all products were computed in float64.
    """

    seen: ClientVectors = field(default_factory=ClientVectors)
    rates: dict[ClientId, float] = field(default_factory=dict)
    products: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    exact: bool = True

    def join(self, cohort: Cohort, shares: Vector, before: int) -> CohortWithHistory:
        """Return the cohort, its mean and the absent clients seen since round `before`.

        Args:
            cohort: the round's replies. Older displacements of these clients are left out.
            shares: the weight of each reply in the mean [m], adding up to 1.
            before: the round of the oldest displacement that still counts.
        """
        present = {update.client: update.delta for update in cohort.updates}
        young = self.seen.since(before).entries
        absent = {client: entry for client, entry in young.items() if client not in present}
        vectors = (entry.vector for entry in absent.values())
        rows = [cohort.mean(shares), *present.values(), *vectors]
        products, exact = _products(rows, shares, self, list(absent))
        history = History(
            ClientVectors(absent).put(cohort.round, present),
            dict.fromkeys(present, cohort.local_lr) | {c: self.rates[c] for c in absent},
            products[1:, 1:],
            exact,
        )
        compute_dtype = np.float64 if exact else np.float32
        return CohortWithHistory(
            [*present, *absent], rows, products, compute_dtype, len(absent), history
        )


def _products(
    rows: Sequence[Vector], shares: Vector, history: History, absent: Sequence[ClientId]
) -> tuple[Matrix, bool]:
    """Return the products of the mean, the cohort and the absent, and whether all are exact.

    Args:
        rows: the mean, the cohort's displacements, the absent clients', 1 + k vectors [d].
        shares: the weight of each reply in the mean [m].
        history: the history before the round.
        absent: the absent clients, in the order of the rows.
    """
    new = len(shares)
    in_float32 = (
        rows[0].size >= LONG
        and all(row.dtype == np.float32 for row in rows)
        and all(map(_errors_cancel, rows[1 : 1 + new]))
    )
    if history.exact:
        made = _symmetric(inner_products(rows[: 1 + new], rows))
        products = _filled(made, history, absent)
        return products, not (in_float32 and _far_apart(products[1:, 1:]))
    if in_float32:
        made = _symmetric(inner_products(rows[1 : 1 + new], rows[1:], compute_dtype=np.float32))
        products = _filled(_with_mean(made, shares), history, absent)
        if _far_apart(products[1:, 1:]):
            return products, False
        del products  # can be large
    return _symmetric(inner_products(rows, rows)), True


def _errors_cancel(row: Vector) -> bool:
    """Return whether the rounding errors of float32 cancel on a sample of the row.

    They do not cancel where numbers repeat, as in displacements that were quantised, clipped or
    reduced to their signs. Then the error of every block has the same sign.
    """
    pieces = range(0, row.size - PIECE + 1, max(row.size // SAMPLES, PIECE))
    sample = np.concatenate([row[start : start + PIECE] for start in pieces])
    exact = inner_products([sample], [sample])[0, 0]
    fast = inner_products([sample], [sample], compute_dtype=np.float32)[0, 0]
    return bool(abs(fast - exact) <= EVEN * exact)


def _symmetric(products: Matrix) -> Matrix:
    """Give both products of two of the first n rows in [n, k] the same last bit, in place."""
    new = len(products)
    products[:, :new] = (products[:, :new] + products[:, :new].T) / 2
    return products


def _with_mean(products: Matrix, shares: Vector) -> Matrix:
    """Put the mean of the first rows before all rows. Its products follow from theirs [n, k]."""
    first = shares @ np.ascontiguousarray(products)  # fixes the order of the sums
    square = first[: len(shares)] @ shares
    full: Matrix = np.block([[square, first], [first[: len(shares), None], products]])
    return full


def _filled(made: Matrix, history: History, absent: Sequence[ClientId]) -> Matrix:
    """Return all products [k, k] from the new rows' products and the stored ones.

    With many rows a copy of this matrix takes a gigabyte, so each product is written to its place.

    Args:
        made: products of the new rows with all rows [n, k].
        history: the history before the round.
        absent: the absent clients, in the order of the rows.
    """
    new, size = made.shape
    place = {client: k for k, client in enumerate(history.rates)}
    index = np.array([place[client] for client in absent], dtype=np.intp)
    full = np.empty((size, size))
    full[:new] = made
    full[new:, :new] = made[:, new:].T
    for row, k in zip(full[new:], index, strict=True):
        row[new:] = history.products[k].take(index)
    return full


def _far_apart(products: Matrix) -> bool:
    """Return whether float32 is exact enough: no combination of the rows is nearly zero."""
    lengths, scale = lengths_and_scales(products)
    if not (
        np.isfinite(products).all() and (lengths > SHORTEST).all() and (lengths < LONGEST).all()
    ):
        return False
    unit = np.outer(scale, scale)
    unit *= products
    unit[np.diag_indices_from(unit)] -= APART
    try:
        np.linalg.cholesky(unit)
    except np.linalg.LinAlgError:
        return False
    return True
