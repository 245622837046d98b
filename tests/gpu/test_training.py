"""What only a GPU can show. Without one, every test here is skipped and says so."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from client_app import cuda_graph
from client_app.batches import TrainingBatches
from client_app.device import why_no_gpu
from client_app.evaluator import evaluate
from client_app.trainer import train
from common.config_groups import TrainConfig
from common.data import image_batches
from common.methods import LocalRule
from common.models import FlatModel, build
from common.types import Vector
from tests.builders import pictures

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason=f"NOT TESTED, it needs a GPU: {why_no_gpu()}"
)

DATA = pictures(300, channels=3, side=32, classes=10)
PLAN = TrainConfig(batch_size=32, epochs=2)
GRAPH = replace(PLAN, cuda_graph=True)
ALL = np.arange(len(DATA))
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}  # libraries choose their kernels


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Convolutions in float32 and not in TensorFloat-32."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    yield
    torch.backends.cudnn.allow_tf32 = before


def flat_on(device: str, name: str = "cnn") -> FlatModel:
    return FlatModel(build(name, (3, 32, 32), 10, seed=0), device)


def trained(
    plan: TrainConfig = PLAN, device: str = "cuda", flat: FlatModel | None = None, client: str = "0"
) -> Vector:
    flat = flat or flat_on(device)
    train(flat, DATA, ALL, plan, LocalRule(), lr=0.02, seed=1, path=(1, client))
    return flat.copy_weights()


def test_a_step_without_chance_is_that_of_the_cpu() -> None:
    ends = []
    for device in ("cpu", "cuda"):
        flat = flat_on(device, "resnet8")
        train(flat, DATA, ALL, PLAN, LocalRule(), lr=0.02, seed=1, path=(1, "0"))
        ends.append(flat.copy_weights())
        ends.append(np.array(evaluate(flat, DATA, ALL).loss_sum / len(ALL)))
    assert_allclose(ends[0], ends[2], **CLOSE)
    assert_allclose(ends[1], ends[3], rtol=1e-2)


@pytest.mark.parametrize("plan", [PLAN, GRAPH, replace(PLAN, precision="bfloat16", augment=True)])
def test_no_step_waits_for_the_host(plan: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the transfers of an epoch and the summary, whatever would wait is an error."""
    flat, original = flat_on("cuda"), TrainingBatches.epoch
    trained(plan, flat=flat)  # captures, and whatever libraries set up

    def guarded(self: TrainingBatches, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        ready = list(original(self, number))
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield from ready
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(TrainingBatches, "epoch", guarded)
    trained(plan, flat=flat)


def test_the_guard_of_the_test_above_sees_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            loss.item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_graph_trains_as_the_steps_that_it_was_captured_from(precision: str) -> None:
    """Dropout draws the same, and the last batch, of another size, goes the plain way."""
    plan = replace(PLAN, precision=precision)
    assert len(ALL) % plan.batch_size
    assert_allclose(trained(replace(plan, cuda_graph=True)), trained(plan), **CLOSE)


def test_a_graph_leaves_the_statistics_of_normalisations_as_steps_do() -> None:
    ends = []
    for plan in (PLAN, GRAPH):
        features = nn.Sequential(nn.Conv2d(3, 4, 5), nn.BatchNorm2d(4), nn.Flatten())
        model = nn.Sequential(features, nn.Linear(4 * 28 * 28, 10))
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(1))
        flat = FlatModel(model, "cuda")
        trained(plan, flat=flat)
        ends.append(flat.copy_buffers())
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        assert_allclose(ends[1][name], value, **CLOSE)


def test_a_graph_is_captured_once_for_a_model_and_goes_with_it() -> None:
    flat = flat_on("cuda")
    start = flat.copy_weights()
    one = trained(GRAPH, flat=flat)
    flat.load(start, {})
    assert_allclose(trained(GRAPH, flat=flat), one, **CLOSE)
    assert len(cuda_graph._captured[flat]) == 1
    before = len(cuda_graph._captured)
    del flat
    assert len(cuda_graph._captured) == before - 1


def test_a_data_set_without_room_on_the_gpu_comes_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cuda")
    stays = replace(DATA)
    chosen = np.array([3, 200, 3])
    here = image_batches.load_images(stays, chosen, device)
    assert image_batches._resident(stays, device) is not None
    monkeypatch.setattr(image_batches, "RESIDENT_SHARE", 0.0)
    comes = replace(DATA)
    away = image_batches.load_images(comes, chosen, device)
    assert image_batches._resident(comes, device) is None
    for one, other in zip(here, away, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("plan", [PLAN, GRAPH])
def test_clients_side_by_side_in_one_process_do_not_disturb_each_other(plan: TrainConfig) -> None:
    alone = [trained(plan, client=client) for client in "01"]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda client: trained(plan, client=client), "01"))
    for one, other in zip(alone, together, strict=True):
        assert_allclose(one, other, **CLOSE)
