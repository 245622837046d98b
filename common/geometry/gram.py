"""Inner products and sums of long vectors, one block of columns at a time.

The vectors are separate flat arrays of up to ten million numbers. They are never stacked: only a
block of columns of each vector is copied at a time. So the extra memory is small, and every vector
is read from memory once.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.errors import AggregationError
from common.parallel import blocks, map_spans
from common.types import Matrix, Vector

MIN_COLUMNS, MAX_COLUMNS = 512, 16_384  # of a block
# Blocks of a product in float32, so that their rounding errors cancel.
MIN_FLOAT32_BLOCKS = 128
ROW_COLUMNS = 2**16  # columns of a block of one row
# Numbers in a block, which fit into a core's caches.
BLOCK_NUMBERS = 80 * MAX_COLUMNS


def inner_products(
    new: Sequence[Vector], all_: Sequence[Vector], *, compute_dtype: DTypeLike = np.float64
) -> Matrix:
    """Return every inner product new_i . all_j [len(new), len(all_)] in float64.

    A row that is in both lists (the same object) is read once. Within a block of columns the BLAS
    adds up. Over the blocks the sums run in order, in float64. Computing in float32 is about three
    times as fast. Its errors are about 1e-8 |new_i| |all_j| for vectors of 2^18 numbers and more,
    up to 2e-7 for short vectors, and up to 2e-6 where numbers repeat.

    Args:
        new: flat vectors [d], float32 or float64.
        all_: flat vectors [d], float32 or float64.
        compute_dtype: dtype in which the numbers of a block are multiplied.

    Raises:
        AggregationError: the vectors are not all flat and of the same size.

    >>> import numpy as np
    >>> x, y = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    >>> inner_products([x], [x, y]).tolist()
    [[5.0, 1.0]]
    """
    rows = list({id(row): row for row in (*all_, *new)}.values())
    place = {id(row): k for k, row in enumerate(rows)}
    left, right = [place[id(row)] for row in new], [place[id(row)] for row in all_]
    d = _length(rows)
    width = min(_width(len(rows)), max(d // MIN_FLOAT32_BLOCKS, 2048))

    def multiply(span: slice) -> Matrix:
        block = np.empty((len(rows), width), compute_dtype)
        products = np.zeros((len(rows), len(left)))
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # an overflow gives infinity, which callers check
            for columns in blocks(span, width):
                part = _copied(rows, columns, block)
                products += part @ part[left].T
        return products

    total = np.zeros((len(rows), len(left)))
    for products in map_spans(d, multiply):
        total += products
    return total[right].T


def differences(start: Vector, ends: Sequence[Vector]) -> tuple[list[Vector], list[float]]:
    """Return start - end_k [d] for each flat vector, and the length of each difference.

    The length is NaN if a number of the difference is NaN or infinite.

    Args:
        start: flat vector [d].
        ends: flat vectors [d].
    """
    results = [np.empty_like(start) for _ in ends]

    def subtract(span: slice) -> Vector:
        squares = np.zeros(len(ends))
        with np.errstate(over="ignore", invalid="ignore"):
            for columns in blocks(span, ROW_COLUMNS):
                minuend = start[columns]
                for k, (end, result) in enumerate(zip(ends, results, strict=True)):
                    part = np.subtract(minuend, end[columns], out=result[columns])
                    squares[k] += np.dot(part, part)  # while the part is in the cache
        return squares

    squares = sum(map_spans(start.size, subtract), np.zeros(len(ends)))
    return results, [_root(square, result) for square, result in zip(squares, results, strict=True)]


def all_finite(values: NDArray[Any]) -> bool:
    """Return whether no number is NaN or infinite. Finite arrays are read once, uncopied."""
    if values.dtype.kind != "f":
        return True
    return not math.isnan(finite_length(values.reshape(-1)))


def finite_length(vector: Vector) -> float:
    """Return |vector| for a flat vector [d], NaN if a number is NaN or infinite.

    The squares are added up in the dtype of the vector, unless they overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _root(float(np.dot(vector, vector)), vector)


def _root(square: float, vector: Vector) -> float:
    """Return |vector| from its squared length, which is not finite after an overflow."""
    if math.isfinite(square):
        return math.sqrt(square)
    return length(vector) if np.isfinite(vector).all() else math.nan


def length(vector: Vector) -> float:
    """Return |vector| for a flat vector [d], added up in float64.

    >>> import numpy as np
    >>> length(np.array([3.0, 4.0], np.float32))
    5.0
    """
    return math.sqrt(inner_products([vector], [vector])[0, 0])


def combined_length(weights: Vector, products: Matrix) -> float:
    """Return |sum_k weights_k row_k| from weights [m] and the rows' inner products [m, m]."""
    return math.sqrt(max(float(weights @ products @ weights), 0.0))


def lengths_and_scales(products: Matrix) -> tuple[Vector, Vector]:
    """Return the rows' lengths [m] and their reciprocals [m], with 0 for rows of zeros.

    Args:
        products: inner products of the rows [m, m].

    >>> import numpy as np
    >>> [part.tolist() for part in lengths_and_scales(np.array([[4.0, 0.0], [0.0, 0.0]]))]
    [[2.0, 0.0], [0.5, 0.0]]
    """
    lengths = np.sqrt(np.diag(products))
    return lengths, np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def combine(
    weights: Any,
    rows: Sequence[Vector],
    *,
    dtype: DTypeLike | None = None,
    compute_dtype: DTypeLike = np.float64,
) -> Vector:
    """Return sum_k weights_k * rows_k [d].

    Args:
        weights: one finite number per row [m]. A row of weight zero is not read.
        rows: at least one flat vector [d]. float32 and float64 can be mixed.
        dtype: dtype of the result. The default is numpy's common dtype of the rows.
        compute_dtype: dtype in which the numbers are added up. float32 is twice as fast, and exact
            enough if the sum is not much shorter than its parts.

    Raises:
        AggregationError: there are no rows, a weight is missing or not finite, or the rows are not
            all flat and of the same size.

    >>> import numpy as np
    >>> combine([2.0, -1.0], [np.array([1.0, 0.0]), np.array([0.0, 3.0])]).tolist()
    [2.0, -3.0]
    """
    weights = np.asarray(weights, dtype=np.float64)
    if not rows or weights.shape != (len(rows),) or not np.isfinite(weights).all():
        raise AggregationError(
            f"expected at least one row and a finite weight for each, got {len(rows)} rows "
            f"and the weights {weights}"
        )
    total = np.zeros(_length(rows), dtype=dtype or np.result_type(*rows))
    used = [row for weight, row in zip(weights, rows, strict=True) if weight]
    factors = weights[weights != 0].astype(compute_dtype)
    width = _width(len(used))

    def add(span: slice) -> None:
        block = np.empty((len(used), width), compute_dtype)
        for columns in blocks(span, width):
            total[columns] = factors @ _copied(used, columns, block)

    if used:
        map_spans(total.size, add)
    return total


def _width(rows: int) -> int:
    """Return the number of columns of a block for this number of rows."""
    return min(max(BLOCK_NUMBERS // max(rows, 1), MIN_COLUMNS), MAX_COLUMNS)


def _copied(rows: Sequence[Vector], columns: slice, block: Any) -> Any:
    """Return these columns of the rows [m, n], copied into the block's memory."""
    part = block[:, : columns.stop - columns.start]
    for k, row in enumerate(rows):
        part[k] = row[columns]
    return part


def _length(rows: Sequence[Vector]) -> int:
    """Return the size d of all rows, or 0 without rows."""
    for k, row in enumerate(rows):
        if row.ndim != 1 or row.size != rows[0].size:
            raise AggregationError(
                f"expected flat vectors of {rows[0].size} numbers like the first, "
                f"got the shape {row.shape} at place {k}"
            )
    return rows[0].size if rows else 0
