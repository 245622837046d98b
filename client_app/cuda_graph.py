"""The forward and backward pass of a step as one CUDA graph, replayed instead of issued anew.

The kernels of a small model are done sooner than Python can ask for them one by one; a graph is
asked for once a step.
"""

import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from common.models import FlatModel

ComputeGradient = Callable[
    [Tensor, Tensor], Tensor
]  # pictures, labels -> loss; the gradient is left behind
WARM_UP = 3  # passes before the capture, in which libraries choose kernels and set themselves up


def with_cuda_graph(
    flat: FlatModel, compute_gradient: ComputeGradient, size: int, *key: object
) -> ComputeGradient:
    """Return `compute_gradient`, run as a CUDA graph for batches of `size` samples.

    A graph is captured once for a model, size and key, when the first such batch comes.

    Args:
        flat: the model, on a GPU.
        compute_gradient: what a step does before the optimiser, without a look at the device.
        size: samples of the batches that come most.
        key: what decides, beside the batch, what `compute_gradient` does.
    """

    def step(pixels: Tensor, labels: Tensor) -> Tensor:
        if len(pixels) != size:
            return compute_gradient(pixels, labels)
        with _lock:  # one capture at a time
            graphs = _captured.setdefault(flat, {})
            if (size, key) not in graphs:
                graphs[size, key] = CapturedStep(flat, compute_gradient, pixels, labels)
        return graphs[size, key](pixels, labels)

    return step


class CapturedStep:
    """A graph and the tensors that it reads and writes, beside those of the model."""

    def __init__(
        self, flat: FlatModel, compute_gradient: ComputeGradient, pixels: Tensor, labels: Tensor
    ) -> None:
        self.pixels, self.labels = pixels.clone(), labels.clone()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(flat.generator)
        # What a pass changes beside the gradient: chance, and the statistics of normalisations.
        chance = flat.generator.get_state()
        buffers = [(buffer, buffer.clone()) for buffer in flat.model.buffers()]
        here = torch.cuda.current_stream(flat.device)
        aside = torch.cuda.Stream(flat.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                compute_gradient(self.pixels, self.labels)
        here.wait_stream(aside)
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss = compute_gradient(self.pixels, self.labels)
        flat.generator.set_state(chance)
        for buffer, before in buffers:
            buffer.copy_(before)

    def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Learn from a batch; the next call writes over the loss."""
        self.pixels.copy_(pixels)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss


_captured: WeakKeyDictionary[FlatModel, dict[object, CapturedStep]] = WeakKeyDictionary()
_lock = threading.Lock()
