"""FedLF: layer by layer, a direction that serves every client and evens out their losses.

Pan, Li, Yu, Wang, Wang, Tang, Zhao. FedLF: Layer-Wise Fair Federated Learning. AAAI 2024,
Algorithm 1, and its published code.

Each layer l has three kinds of rows, all scaled to the length mu_l, the mean length of the cohort's
displacements in the layer:
1. the cohort's displacements;
2. those of absent clients seen in the last floor(M/m) rounds (M clients seen so far, m sampled);
3. the gradient of -cos(1, F), the fair row, which evens out the cohort's losses F.
With these as the rows of V,

    d_l = V^T lambda,   lambda = argmin |V^T lambda|^2  over  lambda >= 0, sum lambda = 1,

so V_k . d_l >= |d_l|^2 for every row. A layer with d_l = 0 is merged with the next one and solved
again. Then d gets the length of the cohort's uniform mean. The local learning rate cancels, so
displacements take the place of gradients.

Where we depart:
- Zero displacements are left out of a layer. A d_l below a millionth of mu_l counts as zero.
- Losses that are equal up to rounding add no fair row, nor does a fair row that nearly cancels.
- M includes the present cohort.
- `released` follows the published code instead of the paper: each client takes one step with the
  gradient of all its samples (with dropout, as in training), every tensor is a layer, no layers
  are merged, and d is shortened again if a client would lose. Where the code crashes or divides by
  zero, the rules above apply.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.client_vectors import ClientVectors
from common.geometry import (
    WORK_MATRICES,
    ZERO_LENGTH,
    combine,
    combined_length,
    inner_products,
    lengths_and_scales,
    min_norm_weights,
)
from common.layout import Layout
from common.methods.base import LocalRule, Method
from common.settings import setting
from common.types import LOSS_BEFORE, ClientId, Cohort, Matrix, Step, Vector

EQUAL = 1e-6  # losses at a smaller angle to equal ones differ by float32 rounding only

# A fair row shorter than this, relative to the sum of its parts' lengths, counts as zero. Its
# square must exceed the rounding of inner products.
CANCELLED = 1e-4

# Loss that the published code tolerates per client, in gradient units.
TOLERATED = 1e-6


@dataclass(frozen=True)
class Layer:
    """A layer's slice of the vector, its inner products and its solution.

    Attributes:
        span: the slice of the flat vector.
        products: inner products [k, k] of the clients' fragments, the cohort's m first.
        weights: weights of the fragments in d_l [k], zeros if d_l is zero.
    """

    span: slice
    products: Matrix
    weights: Vector

    @classmethod
    def solved(cls, span: slice, products: Matrix, fair: Vector) -> "Layer":
        """Return the layer with d_l solved.

        Args:
            span: the slice of the flat vector.
            products: inner products [k, k] of the clients' fragments, the cohort's m first.
            fair: weights of the cohort's fragments in the fair row [m].
        """
        m = len(fair)
        lengths, scale = lengths_and_scales(products)
        rows = np.diag(scale)[lengths > 0]
        fair_row = np.append(fair, np.zeros(len(lengths) - m)) * scale
        length = combined_length(fair_row, products)
        if length > CANCELLED * np.abs(fair).sum():
            rows = np.vstack([rows, fair_row / length])
        size = float(lengths[:m].mean())
        if not size:
            return cls(span, products, np.zeros_like(lengths))
        answer = min_norm_weights(rows @ products @ rows.T)
        size *= answer.length > ZERO_LENGTH
        return cls(span, products, size * answer.weights @ rows)

    def with_next(self, other: "Layer", fair: Vector) -> "Layer":
        """Return this layer and the next one as one layer, solved again."""
        span = slice(self.span.start, other.span.stop)
        return Layer.solved(span, self.products + other.products, fair)


@dataclass(frozen=True)
class FedLF(Method[ClientVectors]):
    """Minimum-norm direction of every layer, at the uniform mean's length.

    The state is the last displacement of every client ever seen. A round with fewer replies than
    usual looks further back and can need an old one.
    """

    name: ClassVar[str] = "fedlf"
    source: ClassVar[str] = "Pan et al., AAAI 2024"
    needs: ClassVar[tuple[str, ...]] = (LOSS_BEFORE,)

    released: bool = setting(
        False, "follow the published code where it differs from the paper (an ablation)"
    )

    def init(self, layout: Layout) -> ClientVectors:
        """Return an empty history."""
        return ClientVectors()

    def local_rule(self, server_payload: Mapping[str, Vector], layout: Layout) -> LocalRule:
        """Return plain training. `released` takes one step on the full batch."""
        return LocalRule(full_batch=self.released)

    def stored_clients(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return N: every client can have a displacement."""
        return clients

    def state_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return d floats for every client."""
        return layout.size * clients

    def working_floats(self, layout: Layout, clients: int, cohort: int) -> int:
        """Return the Gram matrix of every layer, and the matrices of one solution."""
        layers = len(layout.spans if self.released else layout.layers())
        return 2 * (layers + 3 + WORK_MATRICES) * (1 + clients) ** 2

    def aggregate(
        self, cohort: Cohort, state: ClientVectors, layout: Layout
    ) -> Step[ClientVectors]:
        """Solve every layer, merge those that vanish, and restore the mean's length."""
        present = {update.client: update.delta for update in cohort.updates}
        seen, m = state.put(cohort.round, present), len(present)
        absent = _absent(seen, present, cohort.round - len(seen) // m)
        rows = [*present.values(), *absent]
        losses = cohort.metric(LOSS_BEFORE)
        # The unit of the losses has no effect, because the fair row is scaled to mu_l.
        fair = fair_weights(losses / (losses.max() or 1.0))

        layers = []
        for span in layout.spans.values() if self.released else layout.layers():
            parts = [row[span] for row in rows]
            layers.append(Layer.solved(span, inner_products(parts, parts), fair))
        if not self.released:
            layers = merged(layers, fair)

        scale, gain = stretch(layers, m)
        if self.released:
            scale = shortened(scale, -gain / cohort.local_lr**2)
        direction = np.zeros_like(rows[0])
        for layer in layers:
            parts = [row[layer.span] for row in rows]
            direction[layer.span] = combine(scale * layer.weights, parts, dtype=direction.dtype)
        report = {
            "absent": len(absent),
            "layers": len(layers),
            "fair": bool(fair.any()),
            "stretch": scale,
        }
        return Step(direction, seen, report)


def _absent(
    seen: ClientVectors, present: Mapping[ClientId, Vector], since: int
) -> Sequence[Vector]:
    recent = seen.since(since).entries
    return [entry.vector for client, entry in recent.items() if client not in present]


def fair_weights(losses: Vector) -> Vector:
    """Return the gradient of -cos(1, F) by the losses F [m], or zeros if they are equal.

    It is ((F . e) F / |F| - e |F|) / |F|^2 with e = 1 / sqrt(m). Clients with a low loss can get a
    negative weight.
    """
    length, even = float(np.linalg.norm(losses)), 1 / math.sqrt(len(losses))
    if not length:
        return np.zeros_like(losses)
    unit = losses / length
    turn: Vector = unit.sum() * even * unit - even
    return turn / length * (np.linalg.norm(turn) > EQUAL)


def merged(layers: Sequence[Layer], fair: Vector) -> list[Layer]:
    """Merge each layer with d_l = 0 with the next one, the last layer with the one before."""
    left = list(layers)
    while len(left) > 1:
        empty = next((k for k, layer in enumerate(left) if not layer.weights.any()), None)
        if empty is None:
            break
        at = min(empty, len(left) - 2)
        left[at : at + 2] = [left[at].with_next(left[at + 1], fair)]
    return left


def stretch(layers: Sequence[Layer], m: int) -> tuple[float, float]:
    """Return the factor that gives d the length of the mean displacement, and the least product.

    Args:
        layers: the solved layers.
        m: number of sampled clients.

    Returns:
        The factor, and the smallest inner product of a sampled client's displacement with d before
        the scaling. Both are 0 if d is 0.
    """
    square = float(sum(layer.weights @ layer.products @ layer.weights for layer in layers))
    if square <= 0:
        return 0.0, 0.0
    mean = float(sum(layer.products[:m, :m].sum() for layer in layers)) / m**2
    gains = sum(layer.products[:m] @ layer.weights for layer in layers)
    return math.sqrt(max(mean, 0.0) / square), float(np.min(gains))


def shortened(scale: float, loss: float) -> float:
    """Return the factor of the published code, which protects clients from a loss.

    While a client loses too much, the code halves d. If d would become shorter than it was before
    the scaling, the code restores that length.

    Args:
        scale: factor that gives d the mean's length.
        loss: the largest -g_i . d before the scaling, in gradient units.
    """
    while scale * loss > TOLERATED:
        if scale <= 2:
            return 1.0
        scale /= 2
    return scale
