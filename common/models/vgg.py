"""VGG-11 as in the FedPVR study: configuration A, no normalisation, a three-layer classifier."""

from torch import Tensor, nn

from common.errors import ConfigError
from common.models.dropout import Dropout

WIDTHS = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)  # 0 is a 2x2 max-pool


class VGG(nn.Module):
    """9,750,922 parameters at 3x32x32 and 10 classes, 530,442 of them in `classifier`."""

    def __init__(self, channels: int, flat: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in WIDTHS:
            if width:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            Dropout(0.5),
            nn.Linear(flat, 512),
            nn.ReLU(),
            Dropout(0.5),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of images [n, C, H, W]."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


def vgg11(shape: tuple[int, int, int], classes: int) -> VGG:
    """Build VGG-11 for images of this shape, at least 32x32 pixels.

    Raises:
        ConfigError: the images are too small.
    """
    channels, height, width = shape
    if min(height, width) < 32:
        raise ConfigError(
            f'the model "vgg11" needs images of at least 32x32, these are {height}x{width}; '
            'use "cnn", "mlp" or "resnet8"'
        )
    return VGG(channels, 512 * (height // 32) * (width // 32), classes)
