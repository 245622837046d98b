"""The methods that limit the influence of hostile clients, as Flower strategies.

They are used like those of `server_app.strategies`.
"""

from typing import Unpack

from common import methods
from server_app.ready_strategy import ReadyStrategy, StrategyOptions


class Krum(ReadyStrategy):
    """The mean of the displacements with the smallest Krum scores."""

    method_type = methods.Krum

    def __init__(
        self,
        *,
        hostile: float = methods.Krum.hostile,
        keep: int = methods.Krum.keep,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.Krum(hostile=hostile, keep=keep), **options)


class Median(ReadyStrategy):
    """The median of every coordinate."""

    method_type = methods.Median

    def __init__(self, **options: Unpack[StrategyOptions]) -> None:
        super().__init__(methods.Median(), **options)


class TrimmedMean(ReadyStrategy):
    """The mean of each coordinate's middle entries."""

    method_type = methods.TrimmedMean

    def __init__(
        self,
        *,
        beta: float = methods.TrimmedMean.beta,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(methods.TrimmedMean(beta=beta), **options)
