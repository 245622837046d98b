"""The models, sized from the images' shape and the number of classes, seeded by address."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

from common.errors import ConfigError, did_you_mean
from common.models.cnn import cnn
from common.models.dropout import Dropout
from common.models.flat import FlatModel, layout_of
from common.models.mlp import mlp
from common.models.resnet import resnet8
from common.models.vgg import vgg11
from common.rng import address

Shape = tuple[int, int, int]  # channels, height, width

MODELS: Mapping[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "vgg11": vgg11,
    "resnet8": resnet8,
}


def build(name: str, shape: Shape, classes: int, *, seed: int) -> nn.Module:
    """Return the named model with its first weights, which depend on (seed, name) alone.

    Args:
        name: a key of MODELS.
        shape: channels, height and width of the images.
        classes: number of outputs.
        seed: the run's seed.

    Raises:
        ConfigError: no such model, or images too small for it.
    """
    if name not in MODELS:
        hint = did_you_mean(name, MODELS)
        raise ConfigError(f'no model is named "{name}"{hint}; there are: {", ".join(MODELS)}')
    model = MODELS[name](shape, classes)
    generator = torch.Generator().manual_seed(address(seed, "weights", name) % 2**63)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            _initialise(module, generator)
    return model


def _initialise(module: nn.Conv2d | nn.Linear, generator: torch.Generator) -> None:
    # torch's own default distribution (uniform, 1 / sqrt(fan-in)), but from an addressed stream.
    nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
    if module.bias is not None:
        bound = 1 / math.sqrt(module.weight[0].numel())
        nn.init.uniform_(module.bias, -bound, bound, generator=generator)


__all__ = ["MODELS", "Dropout", "FlatModel", "Shape", "build", "layout_of"]
