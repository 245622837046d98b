"""The model "cnn" in plain PyTorch."""

from torch import Tensor, nn


class Net(nn.Module):
    """Two 5x5 convolutions with 64 maps, then 384 - 192 - 10, for images of 3x32x32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 5 * 5, 384),
            nn.Dropout(0.2),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.Dropout(0.5),
            nn.ReLU(),
            nn.Linear(192, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, 10] of images [n, 3, 32, 32]."""
        logits: Tensor = self.layers(x)
        return logits
