"""ResNet-8 with group normalisation, as in the FedPVR study: three stages of one basic block."""

from torch import Tensor, nn
from torch.nn.functional import relu

GROUPS = 2


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut: a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.GroupNorm(GROUPS, width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's feature maps."""
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet8(nn.Module):
    """Widths 16 - 16 - 32 - 64, 78,042 parameters at 3 channels and 10 classes, no buffers."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1, bias=False),
            nn.GroupNorm(GROUPS, 16),
            nn.ReLU(),
            BasicBlock(16, 16, 1),
            BasicBlock(16, 32, 2),
            BasicBlock(32, 64, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of images [n, C, H, W]."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


def resnet8(shape: tuple[int, int, int], classes: int) -> ResNet8:
    """Build ResNet-8 for images of any size."""
    return ResNet8(shape[0], classes)
