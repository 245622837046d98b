"""Each local step is the step of the formula, and a variate is what the steps add up to."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn.functional import cross_entropy

from client_app.trainer import _Optimiser, train
from common.config_groups import TrainConfig
from common.data import Dataset
from common.data.image_batches import normalise
from common.methods import FedAvg, FedPVR, LocalRule, Method, Scaffold
from common.methods.variates import SHIFT, VARIATE
from common.models import FlatModel
from common.rng import stream
from common.types import ClientUpdate, Cohort, Vector
from server_app.state.server_state import ServerState, next_state
from tests.builders import QUAD2, arrays_in, pictures
from tests.unit.client_app.nets import PLAN, Net, flat_of, run

# ---------------------------------------------------------------- the step


def by_the_book(
    flat: FlatModel, data: Dataset, rule: LocalRule, *, steps_at: Callable[[int], float],
    plan: TrainConfig, momentum: float = 0.0,
) -> Vector:  # fmt: skip
    """The same training with autograd on separate tensors, one formula a line."""
    model = flat.model
    start = [p.detach().clone() for p in model.parameters()]
    shift = np.zeros(flat.layout.size, np.float32)
    inside = np.zeros(flat.layout.size, bool)
    for span in rule.block.spans:
        inside[span] = True
    if rule.shift is not None:
        shift[inside] = rule.shift
    named = {"shift": flat.layout.unflatten(shift), "inside": flat.layout.unflatten(inside)}
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    number = 0
    for epoch in range(plan.epochs):
        order = stream(3, "batches", 1, "0", epoch).permutation(len(data))
        for begin in range(0, len(data), plan.batch_size):
            chosen = order[begin : begin + plan.batch_size]
            images = normalise(torch.from_numpy(data.images[chosen]), data.mean, data.std)
            loss = cross_entropy(model(images), torch.from_numpy(data.labels[chosen]))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for k, (name, p) in enumerate(model.named_parameters()):
                    g = gradients[k] + plan.weight_decay * p + rule.proximal_weight * (p - start[k])
                    g = g + torch.from_numpy(named["shift"][name].copy())
                    free = torch.from_numpy(~named["inside"][name])
                    velocity[k] = momentum * velocity[k] + g
                    p.sub_(steps_at(number) * torch.where(free, velocity[k], g))
            number += 1
    return flat.copy_weights()


RULES: dict[str, tuple[dict[str, float], Callable[[FlatModel], LocalRule]]] = {
    "plain": ({}, lambda f: LocalRule()),
    "momentum": ({"momentum": 0.9}, lambda f: LocalRule()),
    "weight decay": ({"weight_decay": 0.1}, lambda f: LocalRule()),
    "both": ({"momentum": 0.5, "weight_decay": 0.1}, lambda f: LocalRule()),
    "pull": ({}, lambda f: LocalRule(proximal_weight=0.5)),
    "shift": (
        {},
        lambda f: Scaffold().local_rule(
            {SHIFT: stream(0, "shift").normal(size=f.layout.size).astype(np.float32)}, f.layout
        ),
    ),
    "shift on the head, momentum elsewhere": (
        {},
        lambda f: FedPVR(feature_momentum=0.9).local_rule(
            {SHIFT: stream(0, "shift").normal(size=51).astype(np.float32)}, f.layout
        ),
    ),
}


@pytest.mark.parametrize("what", RULES)
@pytest.mark.parametrize("lr", [lambda k: 0.1, lambda k: 0.1 if k < 4 else 0.05])
def test_training_is_the_formula_step_by_step(what: str, lr: Callable[[int], float]) -> None:
    changes, rule_of = RULES[what]
    plan = replace(TrainConfig(batch_size=8, epochs=2), **changes)
    ours = flat_of(Net(nn.Linear(16, 16)))
    book = flat_of(Net(nn.Linear(16, 16)))
    rule, data = rule_of(ours), pictures(20)
    momentum = plan.momentum if rule.momentum is None else rule.momentum
    done = run(ours, data, plan, rule, lr=lr)
    expected = by_the_book(book, data, rule, steps_at=lr, plan=plan, momentum=momentum)
    assert done.steps == 6
    assert_allclose(ours.copy_weights(), expected, atol=2e-6)


class TwoNumbers(nn.Module):
    """QUAD2's w = (x, y) as torch parameters, in float64; y is the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        self.classifier = nn.Linear(1, 1, bias=False, dtype=torch.float64)


def round_by_the_optimiser(
    method: Method[Any], state: ServerState[Any], cohort: list[str], server_lr: float
) -> ServerState[Any]:
    """One round with exact gradients, the trainer's own optimiser, and both method halves."""
    updates = []
    for client in cohort:
        flat, problem = FlatModel(TwoNumbers()), QUAD2[client]
        server_payload = method.server_payload(state.method, client)
        flat.load(state.weights, {})
        optimiser = _Optimiser(flat, PLAN, method.local_rule(server_payload, flat.layout))
        for _ in range(2):
            flat.gradient.copy_(torch.from_numpy(problem.gradient(flat.copy_weights())))
            optimiser.step(0.1)
        reached = flat.copy_weights()
        client_payload = method.client_payload(
            server_payload, flat.layout, state.weights, reached, 0.2
        )
        delta = state.weights - reached
        updates.append(ClientUpdate(client, 1, 2, 0.2, delta, client_payload=client_payload))
    return next_state(
        state, Cohort(state.round + 1, 0.1, 2, tuple(updates)), method, flat.layout, server_lr
    )[0]


BOTH, ONE_BY_ONE = [["1", "2"]] * 2, [["1"], ["2"]]


@pytest.mark.parametrize(
    ("method", "cohorts", "server_lr", "first", "last"),
    [
        (FedAvg(uniform=True), BOTH, 1.0, (0.84, 1.105), (0.736, 1.181125)),
        (FedAvg(), [["1", "2"]] * 500, 1.0, (0.84, 1.105), (0.542857142857, 1.381818181818)),
        (FedPVR(), BOTH, 1.0, (0.84, 1.105), (0.736, 1.1695)),
        (FedPVR(), [["1", "2"]] * 500, 1.0, (0.84, 1.105), (0.542857142857, 1.333333333333)),
        (FedPVR(), BOTH, sqrt(2), (0.773725830020, 1.148492424049),
         (0.659451660041, 1.222794615436)),
        (FedPVR(), ONE_BY_ONE, 1.0, (1.19, 0.64), (0.5831, 1.1074)),
        (Scaffold(), BOTH, 1.0, (0.84, 1.105), (0.7185, 1.1695)),
        (Scaffold(), [["1", "2"]] * 500, 1.0, (0.84, 1.105), (0.5, 1.333333333333)),
        (Scaffold(), ONE_BY_ONE, 1.0, (1.19, 0.64), (0.66385, 1.1074)),
    ],
)  # fmt: skip
def test_quad2_with_the_trainers_own_optimiser(
    method: Method[Any],
    cohorts: list[list[str]],
    server_lr: float,
    first: tuple[float, float],
    last: tuple[float, float],
) -> None:
    layout = FlatModel(TwoNumbers()).layout
    state = ServerState.first(layout, np.ones(2), {}, method)
    for number, cohort in enumerate(cohorts, start=1):
        state = round_by_the_optimiser(method, state, cohort, server_lr)
        if number == 1:
            assert_allclose(state.weights, first, rtol=0, atol=1e-9)
    assert_allclose(state.weights, last, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- control variates


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/160
@pytest.mark.parametrize("method", [Scaffold(), FedPVR()])
def test_one_step_over_all_samples_gives_the_exact_gradient(
    method: Scaffold | FedPVR,
) -> None:
    flat, data = flat_of(Net(nn.Linear(16, 16))), pictures(20)
    images = normalise(torch.from_numpy(data.images), data.mean, data.std)
    cross_entropy(flat.model(images), torch.from_numpy(data.labels)).backward()
    block = method.corrected_block(flat.layout)
    gradient = block.take(flat.gradient.numpy().copy())
    server_payload = method.server_payload(method.init(flat.layout), "0")
    assert not server_payload[SHIFT].any()
    before = flat.copy_weights()
    rule = method.local_rule(server_payload, flat.layout)
    done = run(flat, data, TrainConfig(batch_size=20), rule, lr=1.0)
    assert done.steps == 1
    sent = method.client_payload(
        server_payload, flat.layout, before, flat.copy_weights(), done.lr_sum
    )
    assert_allclose(sent[VARIATE], gradient, atol=1e-6)


def test_a_rate_that_halves_mid_round_counts_with_the_sum_of_the_rates() -> None:
    """A constant gradient is recovered exactly; with K times the first rate it would not be."""
    method, flat = Scaffold(), FlatModel(TwoNumbers())
    before = flat.copy_weights()
    rule = method.local_rule(method.server_payload(method.init(flat.layout), "0"), flat.layout)
    optimiser = _Optimiser(flat, PLAN, rule)
    rates = [0.1] * 5 + [0.05] * 5
    for rate in rates:
        flat.gradient.copy_(torch.tensor([3.0, -2.0]))
        optimiser.step(rate)
    server_payload = {SHIFT: np.zeros(2)}
    sent = method.client_payload(
        server_payload, flat.layout, before, flat.copy_weights(), sum(rates)
    )
    assert_allclose(sent[VARIATE], (3, -2), rtol=1e-12)
    data = pictures(80)
    done = run(flat_of(Net()), data, PLAN, lr=lambda k: 0.1 if k < 5 else 0.05)
    assert done.lr_sum == pytest.approx(0.75, rel=1e-12)


@pytest.mark.parametrize("method", [Scaffold(), FedPVR()])
def test_fifty_rounds_on_ten_very_uneven_clients_stay_finite(
    method: Scaffold | FedPVR,
) -> None:
    sizes = [30, 60, 100, 150, 200, 300, 500, 800, 1500, 3000]
    data = pictures(sum(sizes))
    ends = np.cumsum(sizes)
    flat = flat_of(Net())
    state = ServerState.first(flat.layout, flat.copy_weights(), {}, method)
    plan, losses = TrainConfig(batch_size=128), []
    for number in range(1, 51):
        updates, total = [], 0.0
        for client, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            server_payload = {
                name: vector.astype(np.float32)
                for name, vector in method.server_payload(state.method, str(client)).items()
            }
            flat.load(state.weights, {})
            done = train(
                flat, data, np.arange(end - size, end), plan,
                method.local_rule(server_payload, flat.layout), lr=0.1, seed=1,
                path=(number, client),
            )  # fmt: skip
            reached = flat.copy_weights()
            client_payload = method.client_payload(
                server_payload, flat.layout, state.weights, reached, done.lr_sum
            )
            delta = state.weights - reached
            updates.append(
                ClientUpdate(
                    str(client), size, done.steps, done.lr_sum, delta, client_payload=client_payload
                )
            )
            total += done.loss / len(sizes)
        losses.append(total)
        state, _ = next_state(
            state, Cohort(number, 0.1, 10, tuple(updates)), method, flat.layout, 1.0
        )
    assert all(np.isfinite(array).all() for array in arrays_in(state))
    assert losses[-1] < losses[0] / 2
