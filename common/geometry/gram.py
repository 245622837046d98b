"""Inner products and sums of long vectors, one block of columns at a time.

The vectors are separate flat arrays of up to some ten million numbers. They are never stacked:
only a block of columns of each is in float64 at any time, so memory beyond the vectors is small.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from common.errors import AggregationError
from common.types import Matrix, Vector

COLUMNS = 16_384  # of one block: 128 KiB a row in float64, so a cohort's block stays in cache


def inner_products(new: Sequence[Vector], all_: Sequence[Vector]) -> Matrix:
    """Return every product new_i . all_j [len(new), len(all_)] in float64.

    A row that is in both lists (the same object) is read once. The sums run over the blocks in
    order; within a block they are the BLAS's.

    Args:
        new: flat vectors [d], float32 or float64.
        all_: flat vectors [d], float32 or float64.

    Raises:
        AggregationError: the vectors are not all flat and equally long.
    """
    rows = list({id(row): row for row in (*all_, *new)}.values())
    place = {id(row): k for k, row in enumerate(rows)}
    left, right = [place[id(row)] for row in new], [place[id(row)] for row in all_]
    products = np.zeros((len(new), len(all_)))
    d = _length(rows)
    block = np.empty((len(rows), min(COLUMNS, d)))
    for start in range(0, d, COLUMNS):
        part = block[:, : min(COLUMNS, d - start)]
        for k, row in enumerate(rows):
            part[k] = row[start : start + COLUMNS]
        products += part[left] @ part[right].T
    return products


def length(vector: Vector) -> float:
    """Return |vector| for a flat vector [d], summed up in float64."""
    return math.sqrt(inner_products([vector], [vector])[0, 0])


def combined_length(weights: Vector, products: Matrix) -> float:
    """Return |sum_k weights_k row_k| from weights [m] and the rows' inner products [m, m]."""
    return math.sqrt(max(float(weights @ products @ weights), 0.0))


def lengths_of(products: Matrix) -> tuple[Vector, Vector]:
    """Return the rows' lengths [m] and what brings them to length 1, 0 for rows of zeros [m].

    Args:
        products: the rows' inner products [m, m].
    """
    lengths = np.sqrt(np.diag(products))
    return lengths, np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def combine(weights: Any, rows: Sequence[Vector], *, dtype: DTypeLike | None = None) -> Vector:
    """Return sum_k weights_k * rows_k [d], added up in float64 in the order of the rows.

    Args:
        weights: one finite number a row [m]; a row of weight zero is not read.
        rows: at least one flat vector [d], float32 or float64, mixed or not.
        dtype: of the result; by default the one that numpy gives to the rows together.

    Raises:
        AggregationError: no rows, weights that do not fit them or are not finite, or rows that
            are not all flat and equally long.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if not rows or weights.shape != (len(rows),) or not np.isfinite(weights).all():
        raise AggregationError(
            f"expected at least one row and a finite weight for each, got {len(rows)} rows "
            f"and the weights {weights}"
        )
    d = _length(rows)
    total = np.empty(d, dtype=dtype or np.result_type(*rows))
    used = [(weight, row) for weight, row in zip(weights, rows, strict=True) if weight]
    block, scaled = np.empty((2, min(COLUMNS, d)))
    for start in range(0, d, COLUMNS):
        width = min(COLUMNS, d - start)
        block[:] = 0.0
        for weight, row in used:
            np.multiply(row[start : start + width], weight, out=scaled[:width])
            block[:width] += scaled[:width]
        total[start : start + width] = block[:width]
    return total


def _length(rows: Sequence[Vector]) -> int:
    """Return the length d that all rows share (0 without rows)."""
    for k, row in enumerate(rows):
        if row.ndim != 1 or row.size != rows[0].size:
            raise AggregationError(
                f"expected flat vectors of {rows[0].size} numbers like the first, "
                f"got the shape {row.shape} at place {k}"
            )
    return rows[0].size if rows else 0
