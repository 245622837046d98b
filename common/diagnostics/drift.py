"""Drift diversity: how differently the clients of a round moved, layer by layer.

Li, Schmidt, Alstrøm, Stich. On the Effectiveness of Partial Variance Reduction in Federated
Learning with Heterogeneous Data. CVPR 2023. With the displacements m_i of m clients,

    xi = sum_i |m_i|^2 / |sum_i m_i|^2.

By Cauchy-Schwarz xi >= 1/m, with equality only for identical displacements. Orthogonal ones give 1,
and xi grows without bound as displacements cancel. (The paper's text calls 1 agreement.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from common.geometry import MAX_COLUMNS
from common.layout import Layout
from common.types import Vector


@dataclass(frozen=True)
class Drift:
    """The drift diversity of a round. None if no client moved, infinite if displacements cancel.

    Attributes:
        whole: over all weights, which is not the mean over the layers.
        layers: of each layer by its module's name, in the model's order.
    """

    whole: float | None
    layers: Mapping[str, float | None]


def drift_diversity(vectors: Sequence[Vector], layout: Layout) -> Drift:
    """Return the drift diversity of displacements, whole and by layer.

    A layer is a module: its weight with its bias. The vectors contain no buffers. All sums are in
    float64, over one block of columns at a time.

    Args:
        vectors: one displacement per client [d], float32 or float64. Their sign does not matter.
        layout: layout of the vectors.
    """
    squares = {
        name: sum((_squares(vectors, span) for span in spans), np.zeros(2))
        for name, spans in layers_of(layout).items()
    }
    whole = sum(squares.values(), np.zeros(2))
    return Drift(_ratio(whole), {name: _ratio(pair) for name, pair in squares.items()})


def layers_of(layout: Layout) -> dict[str, list[slice]]:
    """Return the slices of the flat vector that each module owns. "" is the model itself."""
    layers: dict[str, list[slice]] = {}
    for tensor, span in layout.spans.items():
        layers.setdefault(tensor.rpartition(".")[0], []).append(span)
    return layers


def _squares(vectors: Sequence[Vector], span: slice) -> Vector:
    """Return sum_i |m_i|^2 and |sum_i m_i|^2 over one slice [2]."""
    parts = together = 0.0
    for start in range(span.start, span.stop, MAX_COLUMNS):
        block = slice(start, min(start + MAX_COLUMNS, span.stop))
        total = np.zeros(block.stop - block.start)
        for vector in vectors:
            row = vector[block].astype(np.float64)
            parts += float(row @ row)
            total += row
        together += float(total @ total)
    return np.array([parts, together])


def _ratio(squares: Vector) -> float | None:
    parts, together = squares.tolist()
    if together > 0:
        return float(parts / together)
    return inf if parts > 0 else None
