"""FedPCD's convergence theorem (Theorem 4.1 of its page) as numbers of one round.

For L-smooth losses F_i, exact local gradients, full participation and no history, K local steps
whose sums g_i are within r of K grad F_i, and a direction with cosine at least gamma to every
g_i, the gradient's norm goes to zero for server steps of at most

    step <= gamma_eff / (L K (1 + r)),    gamma_eff = gamma (1 - r) - r.

The page describes gamma and r in words only; this reading of them gives both of its formulas:
gamma is the least cosine of the direction with a g_i that is not 0, and r the largest
|g_i - K grad F_i| / (K |grad F_i|).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Terms:
    """What the theorem is about; None where it is not known or not defined.

    Attributes:
        gamma: least cosine of the direction with what a client moved by.
        r: largest relative error of a client's K steps against K full gradients.
        steps: K, the same for all clients.
    """

    gamma: float | None
    r: float | None
    steps: int | None

    @property
    def gamma_eff(self) -> float | None:
        """What is left of gamma: gamma (1 - r) - r."""
        if self.gamma is None or self.r is None:
            return None
        return self.gamma * (1 - self.r) - self.r

    @property
    def largest_r(self) -> float | None:
        """The r at which nothing is left: gamma / (1 + gamma); None for gamma <= 0."""
        return self.gamma / (1 + self.gamma) if self.gamma is not None and self.gamma > 0 else None

    @property
    def limit(self) -> float | None:
        """The most that step times smoothness may be; None where no step is small enough."""
        left = self.gamma_eff
        if left is None or left <= 0 or self.r is None or self.steps is None:
            return None
        return left / (self.steps * (1 + self.r))


@dataclass(frozen=True)
class RoundConditions:
    """What of a round the premises are about.

    Attributes:
        took_part: clients whose replies were used.
        clients: of the federation.
        history: rounds for which absent clients count, 0 for none, None if there is no such thing.
        steps: local steps of each client.
        inexact: why its steps are not plain ones along exact gradients, a sentence each.
        keeps_length: whether the direction is as long as the mean of the displacements.
        step: server learning rate in units of gradients: server.lr times the local rate.
        smoothness: the largest ratio of a gradient's change to the way that was seen, which the
            L of the theorem is not below; None if none was.
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
    """Whether the theorem says anything of a round, and each premise that is not met.

    `applies` means that nothing speaks against it: the smoothness is only known from below.
    """

    applies: bool
    why_not: tuple[str, ...]


def relative_error(errors: Sequence[float], norms: Sequence[float], steps: int) -> float | None:
    """Return r = max |g_i - K grad F_i| / (K |grad F_i|) over clients [m].

    A client at rest, without gradient and error, does not count. None if all are, or if one
    moved without a gradient.

    Args:
        errors: |g_i - K grad F_i|.
        norms: |grad F_i|.
        steps: K.
    """
    moved = [(error, norm) for error, norm in zip(errors, norms, strict=True) if error or norm]
    if not moved or not all(norm for _, norm in moved):
        return None
    return max(error / (steps * norm) for error, norm in moved)


def error_bound(rate: float, steps: int) -> float:
    """Return what K steps of gradient descent bound r by: ((1 + x)^K - 1) / (K x) - 1.

    That is the mean of (1 + x)^k - 1 over k < K, summed so, since nothing cancels then.

    Args:
        rate: x, the local learning rate times the smoothness, >= 0.
        steps: K >= 1.
    """
    with np.errstate(over="ignore"):
        return float(np.expm1(np.arange(steps) * np.log1p(rate)).mean())


def verdict(terms: Terms, found: RoundConditions) -> Verdict:
    """Say whether the theorem applies, and if not, every reason."""
    why_not = tuple(_objections(terms, found))
    return Verdict(not why_not, why_not)


def _objections(terms: Terms, found: RoundConditions) -> Iterable[str]:
    if found.took_part < found.clients:
        yield f"{found.took_part} of {found.clients} clients took part; the theorem needs all"
    if found.history:
        yield f"the history is {found.history} rounds; the theorem needs 0"
    yield from found.inexact
    if len(set(found.steps)) > 1:
        yield (
            f"clients took from {min(found.steps)} to {max(found.steps)} steps; the theorem needs "
            "one number for all"
        )
    if not found.keeps_length:
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
    if limit is not None and found.smoothness is not None:
        product = found.step * found.smoothness
        if product > limit:
            yield (
                f"the step {found.step:.3g} times the smoothness seen, {found.smoothness:.3g}, is "
                f"{product:.3g}; at most {limit:.3g} is covered"
            )
