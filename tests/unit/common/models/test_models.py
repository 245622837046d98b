"""The models have the papers' sizes, seeded weights, and one flat vector behind them."""

import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torchvision.models import resnet18

from common.errors import ConfigError
from common.models import MODELS, Dropout, FlatModel, build, layout_of

SIZES = [
    ("mlp", (1, 28, 28), 10, 199_210),
    ("cnn", (3, 32, 32), 10, 797_962),
    ("cnn", (3, 32, 32), 100, 815_332),
    ("vgg11", (3, 32, 32), 10, 9_750_922),
    ("vgg11", (3, 32, 32), 100, 9_797_092),
    ("resnet8", (3, 32, 32), 10, 78_042),
    ("resnet8", (3, 32, 32), 100, 83_892),
    ("resnet18", (3, 32, 32), 10, 11_181_642),
]


@pytest.mark.parametrize(("name", "shape", "classes", "size"), SIZES)
def test_parameter_counts_are_the_papers(
    name: str, shape: tuple[int, int, int], classes: int, size: int
) -> None:
    assert layout_of(build(name, shape, classes, seed=0)).size == size


@pytest.mark.parametrize(
    ("name", "classes", "size"), [("vgg11", 10, 530_442), ("resnet8", 10, 650), ("cnn", 10, 1_930)]
)
def test_the_classifier_block_is_the_papers(name: str, classes: int, size: int) -> None:
    layout = layout_of(build(name, (3, 32, 32), classes, seed=0))
    assert layout.block(["classifier"]).size == size


@pytest.mark.parametrize(
    ("name", "modules", "joined"), [("mlp", 3, 3), ("cnn", 5, 5), ("vgg11", 11, 11),
                                    ("resnet8", 19, 10)]
)  # fmt: skip
def test_a_layer_is_a_module_and_a_group_norm_belongs_to_its_convolution(
    name: str, modules: int, joined: int
) -> None:
    layout = layout_of(build(name, (3, 32, 32), 10, seed=0))
    apart, together = layout.layers(), layout.layers(norms_join=True)
    blocks = [layout.block([module]).spans for module in layout.modules]
    assert blocks == [(span,) for span in apart]
    assert (len(apart), len(together)) == (modules, joined)
    kernels = [layout.spans[t.name].start for t in layout.tensors if len(t.shape) > 1]
    assert [span.start for span in together] == kernels


@pytest.mark.parametrize("name", MODELS)
def test_first_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    one = FlatModel(build(name, (3, 32, 32), 10, seed=5)).copy_weights()
    torch.manual_seed(2)
    same = FlatModel(build(name, (3, 32, 32), 10, seed=5)).copy_weights()
    other = FlatModel(build(name, (3, 32, 32), 10, seed=6)).copy_weights()
    assert_array_equal(one, same)
    assert (one != other).mean() > 0.9


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (1, 8, 8)),
        ("resnet8", (1, 8, 8)),
        ("cnn", (1, 28, 28)),
        ("cnn", (3, 64, 48)),
        ("vgg11", (3, 64, 48)),
    ],
)
def test_models_are_sized_from_the_images(name: str, shape: tuple[int, int, int]) -> None:
    assert build(name, shape, 7, seed=0)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("name", "side"), [("cnn", 8), ("vgg11", 28)])
def test_images_that_are_too_small_are_refused_with_a_way_out(name: str, side: int) -> None:
    with pytest.raises(ConfigError, match=rf'{side}x{side}; use "'):
        build(name, (1, side, side), 10, seed=0)


def test_an_unknown_model_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match='did you mean "resnet8"'):
        build("resnet", (3, 32, 32), 10, seed=0)


def test_a_step_on_the_flat_vector_is_a_step_of_the_model() -> None:
    flat = FlatModel(build("mlp", (1, 4, 4), 3, seed=0))
    before = [p.detach().clone() for p in flat.model.parameters()]
    flat.model(torch.ones(2, 1, 4, 4)).square().sum().backward()
    flat.weights.sub_(flat.gradient)
    for old, parameter in zip(before, flat.model.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.detach(), old - parameter.grad)


@pytest.mark.parametrize("name", ["cnn", "resnet8"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_go_through_a_model_with_their_channels_side_by_side(
    name: str, channels: int
) -> None:
    """The same numbers and gradients, up to rounding, in every layer that has channels."""
    flat = FlatModel(build(name, (channels, 32, 32), 10, seed=0))
    pictures = torch.randn(3, channels, 32, 32, generator=torch.Generator().manual_seed(1))
    formats: list[bool] = []
    for module in flat.model.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.MaxPool2d):
            module.register_forward_hook(
                lambda _module, _inputs, out: formats.append(
                    out.is_contiguous(memory_format=torch.channels_last)
                )
            )
    gradients = []
    for outputs in (flat.outputs, flat.model):
        flat.gradient.zero_()
        for module in flat.model.modules():
            if isinstance(module, Dropout):
                module.generator = torch.Generator().manual_seed(3)
        outputs(pictures).square().sum().backward()
        gradients.append(flat.gradient.clone())
    half = len(formats) // 2
    assert all(formats[:half])
    assert not all(formats[half:])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def test_a_model_without_convolutions_gets_the_pictures_as_they_are() -> None:
    flat = FlatModel(build("mlp", (3, 4, 4), 3, seed=0))
    pictures = torch.ones(2, 3, 4, 4)
    assert torch.equal(flat.outputs(pictures), flat.model(pictures))


def test_the_cnns_pool_before_relu_gives_the_bits_of_relu_before_the_pool() -> None:
    """Ties and zeros too: of equal elements, the first is the largest either way."""
    ends = []
    for order in ((0, 2, 1, 3, 5, 4), range(6)):
        model = build("cnn", (3, 20, 20), 10, seed=0).eval()
        model.features = torch.nn.Sequential(*(model.features[k] for k in order))
        pictures = torch.randn(4, 3, 20, 20, generator=torch.Generator().manual_seed(1)).round()
        out = model(pictures)
        out.square().sum().backward()
        ends.append([out, *(p.grad for p in model.parameters())])
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one, other)


def test_load_and_take_round_trip_with_buffers() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    flat = FlatModel(net)
    weights = np.arange(flat.layout.size, dtype=np.float32)
    buffers = {
        "1.running_mean": np.array([1, 2], dtype=np.float32),
        "1.running_var": np.array([3, 4], dtype=np.float32),
        "1.num_batches_tracked": np.array(7),
    }
    flat.load(weights, buffers)
    seen, copy = flat.weights_view(), flat.copy_weights()
    assert not seen.flags.writeable
    flat.weights += 1
    assert_array_equal(seen, weights + 1)  # on a CPU it is the model's own
    assert_array_equal(copy, weights)
    taken = flat.copy_buffers()
    assert taken["1.num_batches_tracked"].shape == ()
    assert taken["1.num_batches_tracked"].dtype == np.int64
    for name, value in buffers.items():
        assert_array_equal(taken[name], value)
    with pytest.raises(ConfigError, match="running_mean"):
        flat.load(weights, {})


def test_frozen_layers_are_not_in_the_layout() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    net[0].requires_grad_(False)
    assert [tensor.name for tensor in layout_of(net).tensors] == ["1.weight", "1.bias"]


def test_bfloat16_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="float32"):
        layout_of(torch.nn.Linear(2, 2).to(torch.bfloat16))


def test_dropout_draws_from_its_own_generator_and_keeps_the_mean() -> None:
    drop, x = Dropout(0.25), torch.ones(20_000)
    drop.generator = torch.Generator().manual_seed(3)
    torch.manual_seed(0)
    one = drop(x)
    drop.generator = torch.Generator().manual_seed(3)
    torch.manual_seed(99)
    assert torch.equal(one, drop(x))
    assert one.mean().item() == pytest.approx(1, abs=0.02)
    assert (one == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    drop.eval()
    assert drop(x) is x


def test_resnet18_computes_what_torchvision_computes() -> None:
    ours = build("resnet18", (3, 32, 32), 10, seed=1)
    theirs = resnet18(num_classes=10)
    names, tensors = theirs.state_dict(), ours.state_dict().values()
    theirs.load_state_dict(dict(zip(names, tensors, strict=True)))
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    assert torch.equal(ours(images), theirs(images))
    assert layout_of(ours).block(["classifier"]).size == 5_130


def test_resnet18_refuses_images_without_three_channels() -> None:
    with pytest.raises(ConfigError, match="3 channels, not 1"):
        build("resnet18", (1, 28, 28), 10, seed=1)


def test_resnet18_without_torchvision_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(ConfigError, match="needs torchvision on the server and on every client"):
        build("resnet18", (3, 32, 32), 10, seed=1)
