"""SCAFFOLD and FedPVR: the cards' numbers, the invariant of c, and the blocks by name."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from common.errors import ConfigError, WireError
from common.layout import Layout
from common.methods import FedPVR, Scaffold
from common.methods.variates import SHIFT, VARIATE, ControlVariateMethod
from common.models import build, layout_of
from server_app.state.server_state import ServerState
from tests.builders import EXACT, QUAD2, begin, bowls, drawn, layout_of_size, play

HEAD = slice(1, 2)  # FedPVR's p = (0, 1): the second coordinate is the classifier
QUAD2_LAYOUT = layout_of_size(2)


def quad2(
    method: ControlVariateMethod, cohorts: Sequence[Sequence[str]], server_lr: float = 1.0
) -> list[ServerState]:
    state = begin(method, QUAD2_LAYOUT, (1, 1))
    return play(method, state, QUAD2_LAYOUT, QUAD2, cohorts, server_lr=server_lr)


def test_scaffold_on_quad2() -> None:
    first, second, *_, last = quad2(Scaffold(), [["1", "2"]] * 500)
    assert_allclose(first.weights, (0.84, 1.105), **EXACT)
    assert_allclose(first.method.own.get("1"), (-0.95, 1.8), **EXACT)
    assert_allclose(first.method.own.get("2"), (2.55, -2.85), **EXACT)
    assert_allclose(first.method.mean, (0.8, -0.525), **EXACT)
    assert_allclose(second.weights, (0.7185, 1.1695), **EXACT)
    assert_allclose(second.method.mean, (0.6075, -0.3225), **EXACT)
    assert_allclose(second.method.own.get("1"), (-1.1895, 2.2215), **EXACT)
    assert_allclose(second.method.own.get("2"), (2.4045, -2.8665), **EXACT)
    assert_allclose(last.weights, (0.5, 1.333333333333), **EXACT)


def test_scaffold_on_quad2_with_sampling() -> None:
    first, second = quad2(Scaffold(), [["1"], ["2"]])
    assert_allclose(first.weights, (1.19, 0.64), **EXACT)
    assert_allclose(first.method.mean, (-0.475, 0.9), **EXACT)
    assert_allclose(second.weights, (0.66385, 1.1074), **EXACT)
    assert_allclose(second.method.own.get("2"), (3.10575, -3.237), **EXACT)
    assert_allclose(second.method.mean, (1.077875, -0.7185), **EXACT)


def test_fedpvr_on_quad2() -> None:
    first, second, *_, last = quad2(FedPVR(), [["1", "2"]] * 500)
    assert_allclose(first.weights, (0.84, 1.105), **EXACT)
    assert_allclose(first.method.own.get("1"), [1.8], **EXACT)
    assert_allclose(first.method.own.get("2"), [-2.85], **EXACT)
    assert_allclose(first.method.mean, [-0.525], **EXACT)
    assert_allclose(second.weights, (0.736, 1.1695), **EXACT)
    assert_allclose(second.method.mean, [-0.3225], **EXACT)
    assert_allclose(second.method.own.get("1"), [2.2215], **EXACT)
    assert_allclose(second.method.own.get("2"), [-2.8665], **EXACT)
    assert_allclose(last.weights, (0.542857142857, 1.333333333333), **EXACT)


def test_fedpvr_on_quad2_with_a_server_learning_rate() -> None:
    first, second = quad2(FedPVR(), [["1", "2"]] * 2, server_lr=sqrt(2))
    assert_allclose(first.weights, (0.773725830020, 1.148492424049), **EXACT)
    assert_allclose(second.weights, (0.659451660041, 1.222794615436), **EXACT)


def test_fedpvr_on_quad2_with_sampling() -> None:
    first, second = quad2(FedPVR(), [["1"], ["2"]])
    assert_allclose(first.weights, (1.19, 0.64), **EXACT)
    assert_allclose(first.method.mean, [0.9], **EXACT)
    assert_allclose(second.weights, (0.5831, 1.1074), **EXACT)
    assert_allclose(second.method.own.get("2"), [-3.237], **EXACT)
    assert_allclose(second.method.mean, [-0.7185], **EXACT)


# A public report of this bug: https://github.com/NVIDIA/NVFlare/pull/4838
@pytest.mark.parametrize("method", [Scaffold(), FedPVR()])
def test_c_is_the_mean_of_all_c_i_after_every_round(method: ControlVariateMethod) -> None:
    """Clients that were never seen count as zero, and the sum does not drift in 60 rounds."""
    layout = layout_of_size(9)
    state = begin(method, layout, np.zeros(9), np.float32)
    for after in play(method, state, layout, bowls(6, 9), drawn(6, 2, 60)):
        variates = after.method
        held = [entry.vector for entry in variates.own.entries.values()]
        assert variates.clients == 6
        assert_allclose(variates.mean, np.sum(held, axis=0) / 6, atol=1e-6)
    assert len(held) == 6


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/160
@pytest.mark.parametrize("method", [Scaffold(), FedPVR()])
def test_everything_is_zero_before_round_1_and_one_step_gives_the_exact_gradient(
    method: ControlVariateMethod,
) -> None:
    layout, problems = layout_of_size(9), bowls(3, 9)
    state = begin(method, layout, np.full(9, 0.5), np.float32)
    for client in problems:
        assert not method.server_payload(state.method, client)[SHIFT].any()
    (after,) = play(method, state, layout, problems, [list(problems)], steps=1)
    block = method.corrected_block(layout)
    for client, problem in problems.items():
        gradient = block.take(problem.gradient(state.weights))
        assert_allclose(after.method.own.get(client), gradient, atol=1e-6)


# ---------------------------------------------------------------- what is corrected


class Net(nn.Module):
    """Two frozen layers, BatchNorm with buffers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        )
        self.classifier = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        for layer in (self.features[0], self.features[3]):
            layer.requires_grad_(False)


def corrected_names(method: ControlVariateMethod, layout: Layout) -> set[str]:
    inside = np.zeros(layout.size, dtype=bool)
    for span in method.corrected_block(layout).spans:
        inside[span] = True
    for name, span in layout.spans.items():
        assert inside[span].all() or not inside[span].any(), name
    return {name for name, span in layout.spans.items() if inside[span].all()}


TRAINED = {
    "features.1.weight", "features.1.bias", "features.2.weight", "features.2.bias",
    "features.4.weight", "features.4.bias",
}  # fmt: skip
HEADS = {"classifier.0.weight", "classifier.0.bias", "classifier.2.weight", "classifier.2.bias"}


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (Scaffold(), TRAINED | HEADS),
        (FedPVR(block="*"), TRAINED | HEADS),
        (FedPVR(), HEADS),
        (FedPVR(block="classifier.2"), {"classifier.2.weight", "classifier.2.bias"}),
        (FedPVR(block="last:1"), {"classifier.2.weight", "classifier.2.bias"}),
        (FedPVR(block="last:2"), HEADS),
        (FedPVR(block="features.2, classifier"), HEADS | {"features.2.weight", "features.2.bias"}),
        (FedPVR(block=""), set()),
    ],
)
def test_variates_belong_to_exactly_the_trained_tensors_asked_for(
    method: ControlVariateMethod, names: set[str]
) -> None:
    """No buffers, no frozen layers, no weight without its bias."""
    layout = layout_of(Net())
    assert corrected_names(method, layout) == names
    size = sum(tensor.size for tensor in layout.tensors if tensor.name in names)
    assert method.expected_payload(method.init(layout)) == ({VARIATE: size} if names else {})


def test_the_head_may_be_all_that_is_trained() -> None:
    net = Net()
    net.features.requires_grad_(False)
    layout = layout_of(net)
    assert corrected_names(FedPVR(), layout) == HEADS == set(layout.spans)


@pytest.mark.parametrize("block", ["features.0", "features.0,classifier", "head", "classifier.1"])
def test_a_block_that_owns_nothing_trained_is_refused_with_what_there_is(block: str) -> None:
    with pytest.raises(ConfigError, match=r"this model has: .*classifier\.2"):
        FedPVR(block=block).init(layout_of(Net()))


def test_bfloat16_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        layout_of(Net().to(torch.bfloat16))


@pytest.mark.parametrize("sent", [{}, {SHIFT: np.zeros(1)}, {SHIFT: np.zeros(5)}])
@pytest.mark.parametrize("method", [Scaffold(), FedPVR()])
def test_a_correction_of_another_size_is_refused_not_stretched(
    method: ControlVariateMethod, sent: dict[str, np.ndarray]
) -> None:
    layout = layout_of_size(9)
    with pytest.raises(WireError, match=f"{len(sent.get(SHIFT, ()))}; start both with"):
        method.local_rule(sent, layout)


@pytest.mark.parametrize(
    ("model", "size"), [("vgg11", 530_442), ("resnet8", 650)]
)  # the paper's v, at 3x32x32 and 10 classes
def test_the_default_block_is_the_papers_classifier(model: str, size: int) -> None:
    layout = layout_of(build(model, (3, 32, 32), 10, seed=0))
    assert FedPVR().corrected_block(layout).size == size


# ---------------------------------------------------------------- the server's half


def test_a_variate_is_replaced_not_added() -> None:
    """The server's sum moves by c_i+ - c_i: a client that comes twice counts once."""
    method, layout = Scaffold(), layout_of_size(3)
    states = play(method, begin(method, layout, np.ones(3)), layout, bowls(2, 3), [["0"]] * 5)
    last = states[-1].method
    assert_allclose(last.total, last.own.get("0"), atol=1e-12)


def test_an_absent_client_keeps_its_variate() -> None:
    method, layout = Scaffold(), layout_of_size(3)
    cohorts = [["0", "1"], ["1"], ["1"]]
    states = play(method, begin(method, layout, np.ones(3)), layout, bowls(2, 3), cohorts)
    assert_array_equal(states[2].method.own.get("0"), states[0].method.own.get("0"))
    assert states[2].method.own.entries["0"].round == 1


@pytest.mark.parametrize("method", [Scaffold(), FedPVR()])
def test_momentum_and_weight_decay_are_objected_to(method: ControlVariateMethod) -> None:
    assert list(method.config_problems(lr=0.1, momentum=0.0, weight_decay=0.0)) == []
    said = list(method.config_problems(lr=0.1, momentum=0.9, weight_decay=1e-4))
    assert [text.partition(" ")[0] for text in said] == ["train.momentum", "train.weight-decay"]


def test_feature_momentum_works_outside_the_block_alone() -> None:
    """Coordinate 1 follows heavy-ball SGD, coordinate 2 is FedPVR's."""
    plain = quad2(FedPVR(), [["1"]])[0].weights
    heavy = quad2(FedPVR(feature_momentum=0.9), [["1"]])[0].weights
    # x: 1 -> 1 - 0.1 (-1) = 1.1 -> 1.1 - 0.1 (0.9 (-1) - 0.9) = 1.28
    assert_allclose(heavy, (1.28, plain[1]), **EXACT)
