"""Models of torchvision, built without pretrained weights."""

from collections import OrderedDict

from torch import nn

from common.errors import ConfigError


def resnet18(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build torchvision's ResNet-18 for color images of any size: 11.2 million parameters.

    Its last layer is called `classifier` here, as in the other models. Its BatchNorm statistics
    are buffers: the server averages them, and no step changes them. Source: He et al., Deep
    Residual Learning for Image Recognition, CVPR 2016.

    Raises:
        ConfigError: the images do not have three channels, or torchvision is not installed.
    """
    if shape[0] != 3:
        raise ConfigError(f"resnet18 needs images with 3 channels, not {shape[0]}")
    try:
        from torchvision.models import resnet18 as build  # imported late: it takes a second
    except ImportError as error:
        raise ConfigError(
            f"resnet18 needs torchvision on the server and on every client ({error}); install it "
            "there, or choose another model"
        ) from error

    *features, (_, classifier) = build(weights=None, num_classes=classes).named_children()
    layers = OrderedDict([*features, ("flatten", nn.Flatten())])
    return nn.Sequential(
        OrderedDict([("features", nn.Sequential(layers)), ("classifier", classifier)])
    )
