"""First weights by address: they depend on the run's seed and the model's name alone."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from common.rng import address

PURPOSE = "weights"
DRAWS = {  # torch's functions that draw at random and take a generator
    *("bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm"),
    *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_"),
    *("uniform_", "kaiming_normal_", "kaiming_uniform_", "orthogonal_", "sparse_"),
    *("trunc_normal_", "xavier_normal_", "xavier_uniform_"),
}


def build_seeded(make: Callable[[], nn.Module], *, seed: int, name: str) -> nn.Module:
    """Return a new model whose first weights depend on (seed, name) alone.

    Torch's global generator is neither read nor changed. The rules, in this order:

    1. A parameter keeps the value that its constructor gives it. The constructor draws from the
       address (seed, name).
    2. `Conv2d` and `Linear` take torch's default distribution, drawn in the order of
       `model.modules()` from the address (seed, name).
    3. Every other module with `reset_parameters` or `_reset_parameters` is reset by it, drawn from
       the address (seed, name, path of the module). A parent comes after its children.

    Args:
        make: builds the model, on the CPU.
        seed: the run's seed.
        name: the model's name.
    """
    with _DrawsFrom(_generator(seed, name, "constructor")):
        model = make()
    generator = _generator(seed, name)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            _reset_as_torch_does(module, generator)
    for path, module in reversed(list(model.named_modules())):
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if reset is not None and not isinstance(module, nn.Conv2d | nn.Linear):
            with _DrawsFrom(_generator(seed, name, "module", path)):
                reset()
    return model


def _generator(seed: int, name: str, *path: str) -> torch.Generator:
    return torch.Generator().manual_seed(address(seed, PURPOSE, name, *path) % 2**63)


def _reset_as_torch_does(module: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
    if module.bias is not None:
        bound = 1 / math.sqrt(module.weight[0].numel())
        nn.init.uniform_(module.bias, -bound, bound, generator=generator)


class _DrawsFrom(TorchFunctionMode):
    """Make torch draw from a generator of its own in this thread, for the length of the block."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if getattr(func, "__name__", "") in DRAWS and options.get("generator") is None:
            options["generator"] = self.generator
        return func(*args, **options)
