"""Dropout that draws from the model's generator instead of torch's global one."""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Zero each element with probability `rate` and scale the rest by 1 / (1 - rate).

    The trainer seeds the generator (see FlatModel) with the address of round and client. So clients
    in parallel threads draw the same masks as clients that train alone.
    """

    generator: torch.Generator | None = None

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with dropped elements in training mode, otherwise `x` itself."""
        if not self.training or not self.rate:
            return x
        keep = 1 - self.rate
        mask = torch.empty_like(x).bernoulli_(keep, generator=self.generator)
        return x * mask.div_(keep)
