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
    """Return the layout of a model: trainable parameters in order, buffers beside them.

    Frozen parameters (requires_grad False) are in neither: they stay as they were built.

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
    kept = model.state_dict(keep_vars=True)  # leaves out the buffers that are not persistent
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


class FlatModel:
    """A model, its layout, and its trainable weights and gradients as one tensor [d] each.

    The parameters are views of `weights` and their gradients views of `gradient`, so an SGD step
    over the whole model is one vector operation and packing it is one copy. What its Dropouts drop
    comes from `generator`, which whoever trains the model seeds.
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
        """Where the model lives."""
        return self.weights.device

    def outputs(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the model's logits [n, classes] of float pictures [n, c, h, w].

        Convolutions and pools are faster on pictures whose channels lie side by side. They hand
        that order on, so that it is enough to bring in the pictures so; the weights stay as they
        are in the flat vector.
        """
        logits: torch.Tensor = self.model(pictures.to(memory_format=self._format))
        return logits

    def load(self, weights: Vector, buffers: Buffers) -> None:
        """Copy weights [d] and buffers into the model.

        Raises:
            ConfigError: the buffers' names are not the model's.
        """
        self.weights.copy_(torch.from_numpy(np.require(weights, requirements="W")))
        own = _buffers(self.model)
        if own.keys() != buffers.keys():
            raise ConfigError(f"expected the buffers {sorted(own)}, got {sorted(buffers)}")
        with torch.no_grad():
            for name, buffer in own.items():
                buffer.copy_(torch.from_numpy(np.array(buffers[name])))

    def weights_view(self) -> Vector:
        """Return the weights [d] on the CPU, to be read before the model changes.

        Where the model is on the CPU these are its own weights, else a copy.
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
