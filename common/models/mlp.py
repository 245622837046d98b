"""The multilayer perceptron that the FedLF and FedPCD studies use for Fashion-MNIST."""

from math import prod

from torch import Tensor, nn


class MLP(nn.Module):
    """pixels - 200 - 200 - classes with ReLU, 199,210 parameters at 28x28 and 10 classes."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()
        )
        self.classifier = nn.Linear(200, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of images [n, C, H, W]."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


def mlp(shape: tuple[int, int, int], classes: int) -> MLP:
    """Build the perceptron for images of this shape."""
    return MLP(prod(shape), classes)
