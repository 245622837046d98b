"""The convolutional network of FedLF, FedFV and CRAFT (and most likely of FedPCD)."""

from torch import Tensor, nn

from common.errors import ConfigError
from common.models.dropout import Dropout


class CNN(nn.Module):
    """Two 5x5 convolutions with 64 maps, then 384 - 192 - classes.

    It has 797,962 parameters at 3x32x32 pixels and 10 classes. `classifier` is the last layer, and
    `head` is the two layers before it.
    """

    def __init__(self, channels: int, flat: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, 5),
            nn.MaxPool2d(2),  # before ReLU: the same bits, from a quarter of the elements
            nn.ReLU(),
            nn.Conv2d(64, 64, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(flat, 384),
            Dropout(0.2),
            nn.ReLU(),
            nn.Linear(384, 192),
            Dropout(0.5),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(192, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of images [n, C, H, W]."""
        logits: Tensor = self.classifier(self.head(self.features(x)))
        return logits


def cnn(shape: tuple[int, int, int], classes: int) -> CNN:
    """Build the network for images of this shape, at least 16x16 pixels.

    Raises:
        ConfigError: the images are too small.
    """
    channels, height, width = shape
    if min(height, width) < 16:
        raise ConfigError(
            f'the model "cnn" needs images of at least 16x16, these are {height}x{width}; '
            'use "mlp" or "resnet8"'
        )
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return CNN(channels, 64 * rows * columns, classes)
