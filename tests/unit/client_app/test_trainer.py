"""The trainer takes exactly the steps it counts, whatever the size of the client."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn
from torch.nn.functional import cross_entropy

from client_app.trainer import TrainingResult
from common.config_groups import TrainConfig
from common.data.image_batches import normalise
from common.errors import ClientError
from common.methods import METHODS, LocalRule, Method, Scaffold
from common.methods.variates import SHIFT
from common.models import Dropout
from common.types import Vector
from tests.builders import Quadratic, arrays_in, assert_same, pictures
from tests.each import for_each
from tests.unit.client_app.nets import PLAN, Net, flat_of, run


class Pooled(nn.Module):
    """A 1x1 map in front of BatchNorm2d."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 4), nn.BatchNorm2d(4), nn.Flatten())
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(x))
        return logits


# ---------------------------------------------------------------- batches and counts


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/160
@pytest.mark.parametrize(("drop_last", "steps"), [(False, 160), (True, 155)])
def test_k_counts_the_steps(drop_last: bool, steps: int) -> None:
    """1000 samples in batches of 32, five times: never 32, 5 or 5000."""
    plan = TrainConfig(batch_size=32, epochs=5, drop_last=drop_last)
    done = run(flat_of(Net()), pictures(1000), plan, lr=0.01)
    assert done.steps == steps
    assert done.lr_sum == pytest.approx(steps * 0.01, rel=1e-12)
    assert done.examples == 1000


def test_samples_that_drop_last_never_reached_are_not_counted() -> None:
    done = run(flat_of(Net()), pictures(20), TrainConfig(batch_size=16, drop_last=True))
    assert (done.steps, done.examples) == (1, 16)


def test_less_than_a_batch_with_drop_last_is_no_step_and_changes_nothing() -> None:
    flat = flat_of(Net())
    before = flat.copy_weights()
    done = run(flat, pictures(3), TrainConfig(batch_size=8, drop_last=True))
    assert done == TrainingResult(steps=0, lr_sum=0.0, examples=0, loss=0.0)
    assert_array_equal(flat.copy_weights(), before)


NORMED = {
    "BatchNorm1d head": lambda: Net(nn.BatchNorm1d(16)),
    "1x1 before BatchNorm2d": Pooled,
}


# A public report of this bug: https://github.com/pytorch/pytorch/issues/7716
@for_each("method", [kind() for kind in METHODS.values()])
@pytest.mark.parametrize("model", NORMED)
@pytest.mark.parametrize(("count", "steps"), [(1, 1), (2, 1), (33, 1), (64, 2), (65, 2)])
def test_no_client_is_too_small_for_batch_normalisation(
    model: str, method: Method[Any], count: int, steps: int
) -> None:
    """A last batch of one sample joins the one before it; a single sample uses old statistics."""
    flat, data = flat_of(NORMED[model]()), pictures(count)
    server_payload = method.server_payload(method.init(flat.layout), "0")
    before = flat.copy_weights()
    plan = TrainConfig(batch_size=32)
    done = run(flat, data, plan, method.local_rule(server_payload, flat.layout))
    assert (done.steps, done.examples) == (steps, count)
    assert np.isfinite(flat.copy_weights()).all()
    assert not np.array_equal(flat.copy_weights(), before)
    assert all(np.isfinite(b).all() for b in flat.copy_buffers().values())


@pytest.mark.parametrize("model", NORMED)
def test_batches_of_one_train_with_the_running_statistics(model: str) -> None:
    flat = flat_of(NORMED[model]())
    before = flat.copy_buffers()
    done = run(flat, pictures(5), TrainConfig(batch_size=1))
    assert (done.steps, done.examples) == (5, 5)
    assert_same(flat.copy_buffers(), before)
    assert run(flat, pictures(8), TrainConfig(batch_size=4)).steps == 2
    assert not np.array_equal(*(next(arrays_in(b)) for b in (flat.copy_buffers(), before)))


def test_the_loss_is_the_mean_over_the_samples() -> None:
    flat, data = flat_of(Net()), pictures(20)
    done = run(flat, data, TrainConfig(batch_size=16), lr=1e-12)
    images = normalise(torch.from_numpy(data.images), data.mean, data.std)
    exact = cross_entropy(flat.model(images), torch.from_numpy(data.labels)).item()
    assert done.loss == pytest.approx(exact, rel=1e-5)


# ---------------------------------------------------------------- precision


def test_bfloat16_is_used_in_the_layers_and_nowhere_else() -> None:
    seen: dict[str, torch.dtype] = {}
    flat, exact = flat_of(Net(nn.Linear(16, 16))), flat_of(Net(nn.Linear(16, 16)))
    flat.model.register_forward_hook(lambda _m, _i, out: seen.update(out=out.dtype))
    data, plan = pictures(80), replace(PLAN, precision="bfloat16")
    done, reference = run(flat, data, plan, lr=0.01), run(exact, data, PLAN, lr=0.01)
    assert seen["out"] == torch.bfloat16
    assert flat.weights.dtype == flat.gradient.dtype == torch.float32
    assert done.loss == pytest.approx(reference.loss, rel=2e-2)
    assert done.loss != reference.loss
    np.testing.assert_allclose(flat.copy_weights(), exact.copy_weights(), atol=2e-3)


@pytest.mark.parametrize("middle", [Dropout(0.5), nn.BatchNorm1d(16)])
def test_bfloat16_gives_the_same_bits_again(middle: nn.Module) -> None:
    ends = []
    for _ in range(2):
        flat = flat_of(Net(copy.deepcopy(middle)))
        run(flat, pictures(40), replace(PLAN, precision="bfloat16"))
        ends.append(flat.copy_weights())
    assert_array_equal(*ends)


def test_on_a_cpu_a_cuda_graph_changes_nothing() -> None:
    ends = []
    for plan in (PLAN, replace(PLAN, cuda_graph=True)):
        flat = flat_of(Net(Dropout(0.5)))
        run(flat, pictures(40), plan)
        ends.append(flat.copy_weights())
    assert_array_equal(*ends)


# ---------------------------------------------------------------- chance and errors


def test_the_address_decides_everything_that_is_drawn() -> None:
    plan, data = replace(PLAN, augment=True), pictures(40)

    def trained(path: tuple[int | str, ...]) -> Vector:
        flat = flat_of(Net(Dropout(0.5)))
        run(flat, data, plan, path=path)
        return flat.copy_weights()

    torch.manual_seed(1)
    one = trained((1, "0"))
    torch.manual_seed(2)
    assert_array_equal(trained((1, "0")), one)
    assert not np.array_equal(trained((2, "0")), one)
    assert not np.array_equal(trained((1, "1")), one)


def test_layers_drop_different_elements() -> None:
    """One generator for all of a model: two of the same seed would tie their masks together."""
    masks = []
    layers = [Dropout(0.5), Dropout(0.5)]
    flat = flat_of(Net(nn.Sequential(*layers)))
    for layer in layers:
        layer.register_forward_hook(lambda _layer, _inputs, out: masks.append(out == 0))
    run(flat, pictures(8), PLAN)
    first, both = masks
    assert 0.3 < first.float().mean() < 0.7
    assert both.sum() > first.sum()


def test_momentum_does_not_leak_into_the_next_round() -> None:
    plan, data = replace(PLAN, momentum=0.9), pictures(20)
    fresh, used = flat_of(Net()), flat_of(Net())
    start = used.copy_weights()
    run(used, data, plan)
    used.load(start, {})
    run(used, data, plan)
    run(fresh, data, plan)
    assert_array_equal(used.copy_weights(), fresh.copy_weights())


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/5240
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_told_with_the_first_step_that_has_it(
    bad: float,
) -> None:
    flat = flat_of(Net())
    weights = flat.copy_weights()
    weights[-1] = bad
    flat.load(weights, {})
    with pytest.raises(ClientError, match=r"the loss became nan in local step 1 \(lr 0\.25\)"):
        run(flat, pictures(20), lr=0.25)


def test_a_run_that_diverges_says_in_which_step() -> None:
    with pytest.raises(ClientError, match=r"local step \d+ \(lr 1e\+38\); lower train\.lr"):
        run(flat_of(Net()), pictures(80), lr=1e38)


LOOKS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, momentum=0.9, weight_decay=0.1)])
def test_the_host_does_not_look_at_the_device_in_between(
    plan: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often for 1 step as for 20: a look would make a GPU wait for its host at each."""
    looks: list[str] = []

    def noting(name: str) -> Any:
        original = getattr(torch.Tensor, name)

        def look(self: torch.Tensor, *args: Any, **more: Any) -> Any:
            looks.append(name)
            return original(self, *args, **more)

        return look

    for name in LOOKS:
        monkeypatch.setattr(torch.Tensor, name, noting(name))
    counts = []
    for count in (8, 160):
        looks.clear()
        run(flat_of(Net(Dropout(0.5))), pictures(count), plan, LocalRule(proximal_weight=0.1))
        counts.append(len(looks))
    assert counts[0] == counts[1] > 0


def test_a_correction_is_not_written_to() -> None:
    flat = flat_of(Net())
    shift = np.ones(flat.layout.size, np.float32)
    shift.flags.writeable = False
    run(flat, pictures(20), PLAN, Scaffold().local_rule({SHIFT: shift}, flat.layout))
    assert (shift == 1).all()


def test_the_quadratic_of_the_tests_has_the_gradient_that_it_claims() -> None:
    problem, w = Quadratic(np.array([2.0, 0.0]), np.array([1.0, 2.0])), np.array([1.0, 1.0])
    assert_array_equal(problem.gradient(w), (-1, 2))
