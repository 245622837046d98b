"""The accuracy of a model on all clients' test pictures."""

import torch
from torch import Tensor, nn

BATCH = 500


@torch.inference_mode()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor, test: Tensor) -> float:
    """Return the share of the pictures at `test` [clients, n] that are told right."""
    net.eval()
    right = 0
    for chosen in torch.split(test.flatten(), BATCH):
        right += int((net(images[chosen]).argmax(1) == labels[chosen]).sum())
    return right / test.numel()
