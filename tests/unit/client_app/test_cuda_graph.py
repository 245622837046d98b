"""What is kept in order around a CUDA graph; that graphs compute the same is shown in tests/gpu."""

import gc
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app import cuda_graph
from client_app.cuda_graph import CapturedStep, with_cuda_graph
from client_app.trainer import _compute_gradient
from common.models import Dropout, FlatModel
from tests.builders import assert_same, pictures
from tests.unit.client_app.nets import Net, flat_of

DATA = pictures(40)
BATCHES = [
    (torch.from_numpy(DATA.images[k : k + 8]), torch.from_numpy(DATA.labels[k : k + 8]))
    for k in (0, 8, 16)
]


class Graph:
    """In place of torch's: whatever is captured is computed again when it is replayed."""

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generator = generator


class Aside:
    """In place of a stream."""

    def __init__(self, *_: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Aside)
    monkeypatch.setattr(torch.cuda, "current_stream", Aside)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda _, **more: nullcontext())


def test_a_capture_draws_nothing_and_counts_no_batch(no_cuda: None) -> None:
    """Its passes leave chance and the statistics of normalisations as they were."""
    ends = []
    for captures in (False, True):
        flat = flat_of(Net(nn.Sequential(nn.BatchNorm1d(16), Dropout(0.5))))
        flat.generator.manual_seed(7)
        compute_gradient: cuda_graph.ComputeGradient = partial(_compute_gradient, flat, DATA, None)
        if captures:
            captured = CapturedStep(flat, compute_gradient, *BATCHES[0])
            assert captured.graph.generator is flat.generator
            captured.graph.replay = lambda c=captured, f=compute_gradient: c.loss.copy_(
                f(c.images, c.labels)
            )
            compute_gradient = captured
        losses = [compute_gradient(*batch).item() for batch in BATCHES]
        ends.append({"losses": losses, "gradient": flat.gradient.numpy(), **flat.copy_buffers()})
    assert_same(*ends)


def test_a_model_has_one_graph_a_size_and_key_and_other_sizes_go_the_plain_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, plain, replays = [], [], []

    class Fake:
        def __init__(
            self, flat: FlatModel, compute_gradient: Any, pixels: Tensor, labels: Tensor
        ) -> None:
            made.append(len(pixels))

        def __call__(self, pixels: Tensor, labels: Tensor) -> Tensor:
            replays.append(len(pixels))
            return torch.zeros(())

    def compute_gradient(pixels: Tensor, labels: Tensor) -> Tensor:
        plain.append(len(pixels))
        return torch.zeros(())

    monkeypatch.setattr(cuda_graph, "CapturedStep", Fake)
    flat, (pixels, labels) = flat_of(Net()), BATCHES[0]
    for key in ("a", "b", "a"):
        step = with_cuda_graph(flat, compute_gradient, 8, key)
        for size in (8, 8, 3):
            step(pixels[:size], labels[:size])
    assert (made, plain, replays) == ([8, 8], [3] * 3, [8] * 6)
    count = len(cuda_graph._captured)
    del flat, step
    gc.collect()
    assert len(cuda_graph._captured) == count - 1
