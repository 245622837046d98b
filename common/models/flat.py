"""FlatModel: a torch model whose trainable tensors are views of one vector."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.errors import ConfigError
from common.layout import Layout, Tensor
from common.models.dropout import Dropout
from common.types import Buffers, Vector


def layout_of(model: nn.Module) -> Layout:
    """Return the layout of a model: its trainable parameters in order, and its buffers.

    Frozen parameters (requires_grad False) are not part of it and never change.

    Raises:
        ConfigError: a trainable parameter is neither float32 nor float64.
    """
    odd = {
        name: str(p.dtype)
        for name, p in model.named_parameters()
        if p.requires_grad and p.dtype not in (torch.float32, torch.float64)
    }
    if odd:
        raise ConfigError(
            f"trainable parameters must be float32, but {odd} are not; keep float32 weights and "
            "use autocast where lower precision is wanted"
        )
    return Layout(
        tuple(
            Tensor(name, tuple(p.shape), str(p.dtype).removeprefix("torch."))
            for name, p in model.named_parameters()
            if p.requires_grad
        ),
        tuple(
            Tensor(name, tuple(b.shape), str(b.dtype).removeprefix("torch."))
            for name, b in _buffers(model).items()
        ),
    )


def _buffers(model: nn.Module) -> Mapping[str, torch.Tensor]:
    saved = model.state_dict(keep_vars=True)  # without the buffers that are not persistent
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


class FlatModel:
    """A model, its layout, and its trainable weights and gradients as one tensor [d] each.

    The parameters are views of `weights`, and their gradients are views of `gradient`. An SGD step
    over the whole model is one vector operation, and packing the model is one copy. The Dropout
    modules draw from `generator`, which the trainer seeds.
    """

    def __init__(self, model: nn.Module, device: torch.device | str = "cpu") -> None:
        self.layout = layout_of(model)
        self.model = model.to(device)
        trainable = [p for p in model.parameters() if p.requires_grad]
        dtype = trainable[0].dtype if trainable else torch.float32
        self.weights = torch.empty(self.layout.size, dtype=dtype, device=device)
        self.gradient = torch.zeros_like(self.weights)
        for parameter, span in zip(trainable, self.layout.spans.values(), strict=True):
            view = self.weights[span].view_as(parameter)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradient[span].view_as(parameter)
        convolves = any(isinstance(module, nn.Conv2d) for module in self.model.modules())
        self._format = torch.channels_last if convolves else torch.contiguous_format
        self.generator = torch.Generator(device)
        for module in self.model.modules():
            if isinstance(module, Dropout):
                module.generator = self.generator

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.weights.device

    def outputs(self, images: torch.Tensor) -> torch.Tensor:
        """Return the model's logits [n, classes] of float images [n, c, h, w].

        Convolutions are faster in the memory format channels-last. They pass it on, so only the
        images are converted. The weights keep their place in the flat vector.
        """
        logits: torch.Tensor = self.model(images.to(memory_format=self._format))
        return logits

    def load(self, weights: Vector, buffers: Buffers) -> None:
        """Copy weights [d] and buffers into the model.

        Raises:
            ConfigError: the buffers' names are not the model's.
        """
        self.weights.copy_(torch.from_numpy(np.require(weights, requirements="W")))
        expected = _buffers(self.model)
        if expected.keys() != buffers.keys():
            raise ConfigError(f"expected the buffers {sorted(expected)}, got {sorted(buffers)}")
        with torch.no_grad():
            for name, buffer in expected.items():
                buffer.copy_(torch.from_numpy(np.array(buffers[name])))

    def weights_view(self) -> Vector:
        """Return the weights [d] on the CPU, read-only. Use them before the model changes.

        For a model on the CPU this is a view, otherwise a copy.
        """
        flat: NDArray[Any] = self.weights.detach().cpu().numpy().view()
        flat.flags.writeable = False
        return flat

    def copy_weights(self) -> Vector:
        """Return a copy of the weights [d] on the CPU."""
        return self.weights_view().copy()

    def copy_buffers(self) -> dict[str, NDArray[Any]]:
        """Return copies of the buffers, with their dtypes, on the CPU."""
        return {name: b.detach().cpu().numpy().copy() for name, b in _buffers(self.model).items()}
