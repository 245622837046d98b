"""FedPCD's convergence theorem (Theorem 4.1 of its page), checked on the numbers of one round.

Its assumptions are L-smooth losses F_i, exact local gradients, full participation, no history, K
local steps whose sums g_i are within r of K grad F_i, and a direction with cosine at least gamma to
every g_i. Then the gradient's norm goes to zero for server steps of at most

    step <= gamma_eff / (L K (1 + r)),    gamma_eff = gamma (1 - r) - r.

The page describes gamma and r in words only. This reading of them gives both of its formulas: gamma
is the least cosine of the direction with a g_i that is not 0, and r is the largest
|g_i - K grad F_i| / (K |grad F_i|).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Terms:
    """The terms of the theorem. None where a term is unknown or undefined.

    Attributes:
        gamma: least cosine of the direction with a client's displacement.
        r: largest relative error of a client's K steps against K full gradients.
        steps: K, the same for all clients.
    """

    gamma: float | None
    r: float | None
    steps: int | None

    @property
    def gamma_eff(self) -> float | None:
        """The margin gamma (1 - r) - r, which must be above 0."""
        if self.gamma is None or self.r is None:
            return None
        return self.gamma * (1 - self.r) - self.r

    @property
    def largest_r(self) -> float | None:
        """The r at which gamma_eff is 0: gamma / (1 + gamma). None for gamma <= 0."""
        return self.gamma / (1 + self.gamma) if self.gamma is not None and self.gamma > 0 else None

    @property
    def limit(self) -> float | None:
        """The largest step * smoothness that the theorem covers. None if no step is covered."""
        left = self.gamma_eff
        if left is None or left <= 0 or self.r is None or self.steps is None:
            return None
        return left / (self.steps * (1 + self.r))


@dataclass(frozen=True)
class RoundConditions:
    """The facts of a round that the theorem's assumptions are about.

    Attributes:
        took_part: number of clients whose replies were used.
        clients: number of clients of the federation.
        history: largest age in rounds of absent clients' displacements. 0 for none, None if the
            method has no history.
        steps: local steps of each client.
        inexact: reasons why the local steps are not plain steps along exact gradients, one sentence
            each.
        keeps_length: whether the direction is as long as the mean of the displacements.
        step: server learning rate in units of gradients: server.lr times the local rate.
        smoothness: the largest observed ratio of a gradient's change to the distance, a lower bound
            of L. None if there is no observation.
    """

    took_part: int
    clients: int
    history: int | None
    steps: Sequence[int]
    inexact: Sequence[str]
    keeps_length: bool
    step: float
    smoothness: float | None


@dataclass(frozen=True)
class Verdict:
    """Whether the theorem applies to a round, and each assumption that does not hold.

    `applies` means that no known fact contradicts an assumption. L is known from below only.
    """

    applies: bool
    why_not: tuple[str, ...]


def relative_error(errors: Sequence[float], norms: Sequence[float], steps: int) -> float | None:
    """Return r = max |g_i - K grad F_i| / (K |grad F_i|) over clients [m].

    A client without gradient and error does not count. The result is None if all clients are such,
    or if a client moved without a gradient.

    Args:
        errors: |g_i - K grad F_i|.
        norms: |grad F_i|.
        steps: K.

    >>> relative_error([1.0, 0.0], [2.0, 0.0], steps=5)
    0.1
    """
    moved = [(error, norm) for error, norm in zip(errors, norms, strict=True) if error or norm]
    if not moved or not all(norm for _, norm in moved):
        return None
    return max(error / (steps * norm) for error, norm in moved)


def error_bound(rate: float, steps: int) -> float:
    """Return the bound on r of K steps of gradient descent: ((1 + x)^K - 1) / (K x) - 1.

    It is computed as the mean of (1 + x)^k - 1 over k < K, in which nothing cancels.

    Args:
        rate: x >= 0, the local learning rate times the smoothness.
        steps: K >= 1.
    """
    with np.errstate(over="ignore"):
        return float(np.expm1(np.arange(steps) * np.log1p(rate)).mean())


def verdict(terms: Terms, facts: RoundConditions) -> Verdict:
    """Return whether the theorem applies, and every reason if it does not."""
    why_not = tuple(_violations(terms, facts))
    return Verdict(not why_not, why_not)


def _violations(terms: Terms, facts: RoundConditions) -> Iterable[str]:
    if facts.took_part < facts.clients:
        yield f"{facts.took_part} of {facts.clients} clients took part; the theorem needs all"
    if facts.history:
        yield f"the history is {facts.history} rounds; the theorem needs 0"
    yield from facts.inexact
    if len(set(facts.steps)) > 1:
        yield (
            f"clients took from {min(facts.steps)} to {max(facts.steps)} steps; the theorem needs "
            "one number for all"
        )
    if not facts.keeps_length:
        yield "the direction is not as long as the mean of the updates"
    if terms.gamma is None:
        yield "there is no least cosine: no step, or nobody moved"
    if terms.r is None:
        yield "r is not known: not every client told its gradients, or they vanish"
    left, limit = terms.gamma_eff, terms.limit
    if left is not None and left <= 0:
        most = terms.largest_r
        yield (
            f"gamma_eff is {left:.3g}, not above 0: "
            + (
                f"r is {terms.r:.3g}, and must be below {most:.3g}"
                if most is not None
                else f"gamma is {terms.gamma:.3g}, so the step leads away from a client"
            )
        )
    if limit is not None and facts.smoothness is not None:
        product = facts.step * facts.smoothness
        if product > limit:
            yield (
                f"the step {facts.step:.3g} times the smoothness seen, {facts.smoothness:.3g}, is "
                f"{product:.3g}; at most {limit:.3g} is covered"
            )
