"""The nearest point of the probability simplex."""

import numpy as np
from numpy.typing import NDArray

from common.errors import AggregationError
from common.types import Vector


def project_onto_simplex(v: Vector) -> NDArray[np.float64]:
    """Return the p [n] nearest to v with p >= 0 and sum p = 1.

    It is p = max(v + s, 0) for one s. With v in descending order as u, s is s_j of the last place j
    at which u_j + s_j > 0, where s_j = (1 - sum_{k <= j} u_k) / j. Duchi, Shalev-Shwartz, Singer,
    Chandra, ICML 2008, Figure 1.

    Args:
        v: n >= 1 finite numbers of any size [n].

    Raises:
        AggregationError: v is not flat, is empty, or holds a number that is not finite.

    >>> import numpy as np
    >>> project_onto_simplex(np.array([1.0, 0.5, -3.0])).tolist()
    [0.75, 0.25, 0.0]
    """
    values = np.asarray(v, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise AggregationError(
            f"expected a flat vector of at least one finite number, got {values.size} of the "
            f"shape {values.shape}, {np.isfinite(values).sum()} of them finite"
        )
    # A shift of all numbers changes nothing, and a number 1 below the largest becomes 0. So the
    # numbers are mapped into [-1, 0], where sums are exact. Halves, because a difference can
    # overflow.
    below = 2 * np.maximum(values / 2 - values.max() / 2, -0.5)
    ordered = np.sort(below)[::-1]
    lifts = (1 - np.cumsum(ordered)) / np.arange(1, values.size + 1)
    last = np.flatnonzero(ordered + lifts > 0)[-1]  # the first place always qualifies, 0 + 1 > 0
    near = np.maximum(below + lifts[last], 0.0)
    left = (1 - near.sum()) / np.count_nonzero(near)  # rounding of a long running sum
    projected: NDArray[np.float64] = np.maximum(near + left * (near > 0), 0.0)
    return projected
