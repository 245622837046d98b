"""Inner products and sums of long vectors, one block of columns at a time.

The vectors are separate flat arrays of up to some ten million numbers. They are never stacked:
only a block of columns of each is copied at any time, so memory beyond the vectors is small, and
every vector is read from memory once.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.errors import AggregationError
from common.parallel import blocks, map_spans
from common.types import Matrix, Vector

MAX_COLUMNS = 16_384  # of a block, at most
MIN_COLUMNS = 512
# blocks that a product in float32 has at least, if it can: their errors even out
MIN_FLOAT32_BLOCKS = 128
ROW_COLUMNS = 2**16  # of a block of one row
# numbers in a block: what a core's cache and its share of the next hold
BLOCK_NUMBERS = 80 * MAX_COLUMNS


def inner_products(
    new: Sequence[Vector], all_: Sequence[Vector], *, compute_dtype: DTypeLike = np.float64
) -> Matrix:
    """Return every product new_i . all_j [len(new), len(all_)] in float64.

    A row that is in both lists (the same object) is read once. Within a block of columns the sums
    are the BLAS's; over the blocks they run in order, in float64. Working in float32 is about
    three times as fast and leaves errors of some 1e-8 |new_i| |all_j| in vectors of 2^18 numbers
    and more that look like noise, up to 2e-7 in short ones, and 2e-6 where numbers repeat.

    Args:
        new: flat vectors [d], float32 or float64.
        all_: flat vectors [d], float32 or float64.
        compute_dtype: dtype that the numbers of a block are multiplied in.

    Raises:
        AggregationError: the vectors are not all flat and equally long.
    """
    rows = list({id(row): row for row in (*all_, *new)}.values())
    place = {id(row): k for k, row in enumerate(rows)}
    left, right = [place[id(row)] for row in new], [place[id(row)] for row in all_]
    d = _length(rows)
    width = min(_width(len(rows)), max(d // MIN_FLOAT32_BLOCKS, 2048))

    def multiply(span: slice) -> Matrix:
        block = np.empty((len(rows), width), compute_dtype)
        products = np.zeros((len(rows), len(left)))
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and seen
            for columns in blocks(span, width):
                part = _copied(rows, columns, block)
                products += part @ part[left].T
        return products

    total = np.zeros((len(rows), len(left)))
    for products in map_spans(d, multiply):
        total += products
    return total[right].T


def differences(start: Vector, ends: Sequence[Vector]) -> tuple[list[Vector], list[bool]]:
    """Return start - end_k [d] for each flat vector, and for each whether all of it is finite."""
    results = [np.empty_like(start) for _ in ends]

    def subtract(span: slice) -> Vector:
        squares = np.zeros(len(ends))
        with np.errstate(over="ignore", invalid="ignore"):
            for columns in blocks(span, ROW_COLUMNS):
                minuend = start[columns]
                for k, (end, result) in enumerate(zip(ends, results, strict=True)):
                    part = np.subtract(minuend, end[columns], out=result[columns])
                    squares[k] += np.dot(part, part)  # while it is in the cache
        return squares

    squares = sum(map_spans(start.size, subtract), np.zeros(len(ends)))
    finite = [
        math.isfinite(square) or all_finite(result)
        for square, result in zip(squares, results, strict=True)
    ]
    return results, finite


def all_finite(values: NDArray[Any]) -> bool:
    """Whether no number is NaN or infinite; read once, without a copy, as long as none is."""
    if values.dtype.kind != "f":
        return True
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.dot(flat, flat)
    return math.isfinite(square) or bool(np.isfinite(flat).all())  # a square may overflow


def length(vector: Vector) -> float:
    """Return |vector| for a flat vector [d], summed up in float64."""
    return math.sqrt(inner_products([vector], [vector])[0, 0])


def combined_length(weights: Vector, products: Matrix) -> float:
    """Return |sum_k weights_k row_k| from weights [m] and the rows' inner products [m, m]."""
    return math.sqrt(max(float(weights @ products @ weights), 0.0))


def lengths_and_scales(products: Matrix) -> tuple[Vector, Vector]:
    """Return the rows' lengths [m] and what brings them to length 1, 0 for rows of zeros [m].

    Args:
        products: the rows' inner products [m, m].
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
        weights: one finite number a row [m]; a row of weight zero is not read.
        rows: at least one flat vector [d], float32 or float64, mixed or not.
        dtype: of the result; by default the one that numpy gives to the rows together.
        compute_dtype: dtype that the numbers are added up in; float32 is twice as fast, and will do
            where the sum is not much shorter than its parts.

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
    """Return how many columns of so many rows make a block."""
    return min(max(BLOCK_NUMBERS // max(rows, 1), MIN_COLUMNS), MAX_COLUMNS)


def _copied(rows: Sequence[Vector], columns: slice, block: Any) -> Any:
    """Return these columns of the rows [m, n], in the block's memory."""
    part = block[:, : columns.stop - columns.start]
    for k, row in enumerate(rows):
        part[k] = row[columns]
    return part


def _length(rows: Sequence[Vector]) -> int:
    """Return the length d that all rows share (0 without rows)."""
    for k, row in enumerate(rows):
        if row.ndim != 1 or row.size != rows[0].size:
            raise AggregationError(
                f"expected flat vectors of {rows[0].size} numbers like the first, "
                f"got the shape {row.shape} at place {k}"
            )
    return rows[0].size if rows else 0
