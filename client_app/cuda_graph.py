"""The forward and backward pass of a step as one CUDA graph.

The GPU runs the kernels of a small model faster than Python can launch them one by one. A graph
launches all of them at once.
"""

import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from common.models import FlatModel

# Maps (images, labels) to the loss, and leaves the gradient in FlatModel.gradient.
ComputeGradient = Callable[[Tensor, Tensor], Tensor]
WARM_UP = 3  # passes before the capture, in which libraries choose kernels and initialise


def with_cuda_graph(
    flat: FlatModel, compute_gradient: ComputeGradient, size: int, *key: object
) -> ComputeGradient:
    """Return `compute_gradient`, run as a CUDA graph for batches of `size` samples.

    A graph is captured once per model, size and key, at the first batch of that size. Batches of
    other sizes run without a graph.

    Args:
        flat: the model, on a GPU.
        compute_gradient: the step up to the optimiser. It must not read values from the GPU.
        size: samples of the most frequent batches.
        key: everything besides the batch that changes `compute_gradient`.
    """

    def step(images: Tensor, labels: Tensor) -> Tensor:
        if len(images) != size:
            return compute_gradient(images, labels)
        with _lock:  # CUDA allows one capture at a time
            graphs = _captured.setdefault(flat, {})
            if (size, key) not in graphs:
                graphs[size, key] = CapturedStep(flat, compute_gradient, images, labels)
        return graphs[size, key](images, labels)

    return step


class CapturedStep:
    """A CUDA graph with its input and output tensors."""

    def __init__(
        self, flat: FlatModel, compute_gradient: ComputeGradient, images: Tensor, labels: Tensor
    ) -> None:
        self.images, self.labels = images.clone(), labels.clone()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(flat.generator)
        # The passes below change the generator and BatchNorm's statistics: restored at the end.
        generator_state = flat.generator.get_state()
        buffers = [(buffer, buffer.clone()) for buffer in flat.model.buffers()]
        current = torch.cuda.current_stream(flat.device)
        side = torch.cuda.Stream(flat.device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                compute_gradient(self.images, self.labels)
        current.wait_stream(side)
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss = compute_gradient(self.images, self.labels)
        flat.generator.set_state(generator_state)
        for buffer, before in buffers:
            buffer.copy_(before)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute the gradient of a batch. Return its loss, which the next call overwrites."""
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss


_captured: WeakKeyDictionary[FlatModel, dict[object, CapturedStep]] = WeakKeyDictionary()
_lock = threading.Lock()
