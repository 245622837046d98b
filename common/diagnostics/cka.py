"""Linear CKA: the similarity of two layers' outputs for the same inputs, from 0 to 1.

Kornblith, Norouzi, Lee, Hinton. Similarity of Neural Network Representations Revisited. ICML 2019,
arXiv 1905.00414. For features X [n, p] and Y [n, q] of the same n inputs, their columns centred,

    CKA = |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F) = <K, L>_F / (|K|_F |L|_F),   K = X X^T, L = Y Y^T.

It does not change with a rotation or a scale of the features. It is undefined, and None here, for
constant features, for features that are not finite, and for a single input.
"""

from collections.abc import Sequence
from itertools import combinations
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.geometry import MAX_COLUMNS
from common.types import Matrix

Features = NDArray[Any]  # [n, p], float32 or float64, one row per input
Similarities = list[list[float | None]]  # [m, m]


def linear_cka(x: Features, y: Features) -> float | None:
    """Return the linear CKA of features [n, p] and [n, q], by the cheaper of its two forms."""
    if max(x.shape[1], y.shape[1]) > len(x):
        return cka_of_grams(centred_gram(x), centred_gram(y))
    return cka_of_features(x, y)


def cka_of_features(x: Features, y: Features) -> float | None:
    """Return the linear CKA from products of the features [n, p], [n, q], cheap for p, q <= n."""
    x, y = _centred(x), _centred(y)
    with np.errstate(invalid="ignore", over="ignore"):
        cross, own, other = (np.linalg.norm(product) for product in (y.T @ x, x.T @ x, y.T @ y))
    return _ratio(float(cross) ** 2, float(own), float(other))


def cka_of_grams(gram: Matrix, other: Matrix) -> float | None:
    """Return the linear CKA from centred Gram matrices [n, n], cheap for p, q > n."""
    with np.errstate(invalid="ignore", over="ignore"):
        norms = float(np.linalg.norm(gram)), float(np.linalg.norm(other))
        return _ratio(float(np.vdot(gram, other)), *norms)


def centred_gram(features: Features) -> Matrix:
    """Return X X^T [n, n] of the centred features [n, p] in float64, in blocks of columns.

    The features are centred before the products. Centring a Gram matrix afterwards loses the digits
    that large means take.
    """
    gram = np.zeros((len(features), len(features)))
    for start in range(0, features.shape[1], MAX_COLUMNS):
        block = _centred(features[:, start : start + MAX_COLUMNS])
        with np.errstate(invalid="ignore", over="ignore"):
            gram += block @ block.T
    return gram


def cka_matrix(grams: Sequence[Matrix]) -> Similarities:
    """Return the CKA of every two clients [m, m] from their centred Gram matrices [n, n] each."""
    matrix: Similarities = [[None] * len(grams) for _ in grams]
    for i, gram in enumerate(grams):
        for j, other in enumerate(grams[: i + 1]):
            matrix[i][j] = matrix[j][i] = cka_of_grams(gram, other)
    return matrix


def mean_of_pairs(matrix: Similarities) -> float | None:
    """Return the mean over pairs of different clients for which the similarity is defined."""
    pairs = [matrix[i][j] for i, j in combinations(range(len(matrix)), 2)]
    known = [value for value in pairs if value is not None]
    return sum(known) / len(known) if known else None


def _centred(features: Features) -> Matrix:
    wide = features.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wide -= wide[:1]  # makes a constant column exactly 0, for every rounding of its mean
        wide -= wide.mean(axis=0)
    return wide


def _ratio(product: float, norm: float, other: float) -> float | None:
    """Return product / (norm * other), clipped to [0, 1] against rounding."""
    if norm == 0 or other == 0 or not isfinite(product / norm / other):
        return None
    return min(max(product / norm / other, 0.0), 1.0)
