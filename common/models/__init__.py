"""The models by name, sized from the images' shape and the number of classes."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from common.errors import ConfigError, did_you_mean
from common.models.cnn import cnn
from common.models.dropout import Dropout
from common.models.flat import FlatModel, layout_of
from common.models.initialisation import build_seeded
from common.models.mlp import mlp
from common.models.resnet import resnet8
from common.models.torchvision_models import resnet18
from common.models.vgg import vgg11

Shape = tuple[int, int, int]  # channels, height, width

MODELS: Mapping[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "vgg11": vgg11,
    "resnet8": resnet8,
    "resnet18": resnet18,
}


def build(name: str, shape: Shape, classes: int, *, seed: int) -> nn.Module:
    """Return the named model with first weights that depend on (seed, name) alone.

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
    return build_seeded(lambda: MODELS[name](shape, classes), seed=seed, name=name)


def count_numbers(name: str, shape: Shape, classes: int) -> int:
    """Return the number of parameters and buffers of a model, without memory for them.

    Args:
        name: a key of MODELS.
        shape: channels, height and width of the images.
        classes: number of outputs.

    Raises:
        ConfigError: images too small for the model.
    """
    with torch.device("meta"):
        model = MODELS[name](shape, classes)
    return sum(tensor.numel() for tensor in model.state_dict().values())


__all__ = [
    "MODELS",
    "Dropout",
    "FlatModel",
    "Shape",
    "build",
    "build_seeded",
    "count_numbers",
    "layout_of",
]
