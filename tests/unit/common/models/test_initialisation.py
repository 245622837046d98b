"""First weights depend on the seed and the model's name alone, whatever the modules are."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from common.models import MODELS, build_seeded


class Bare(nn.Module):
    """Parameters without a module of their own: two that are drawn and one that is constant."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 5) * 0.02)
        self.position = nn.Parameter(torch.empty(4, 5))
        nn.init.trunc_normal_(self.position, std=0.02)
        self.scale = nn.Parameter(torch.full((5,), 1e-4))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "MultiheadAttention": lambda: nn.MultiheadAttention(8, 2),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(3, 4, 3),
    "Conv1d": lambda: nn.Conv1d(3, 4, 3),
    "Embedding": lambda: nn.Embedding(7, 5, padding_idx=0),
    "LSTM": lambda: nn.LSTM(4, 6, num_layers=2),
    "GRU": lambda: nn.GRU(4, 6, bidirectional=True),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "Transformer": lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    "Bilinear": lambda: nn.Bilinear(3, 4, 5),
    "bare parameters": Bare,
}
WITHOUT_DRAWS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: nn.BatchNorm2d(4),
    "LayerNorm": lambda: nn.LayerNorm(6),
}
ALL = {**MODULES, **WITHOUT_DRAWS}
of_all = pytest.mark.parametrize("make", ALL.values(), ids=ALL)
of_drawn = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def state(make: Callable[[], nn.Module], seed: int = 1, name: str = "model") -> dict[str, Tensor]:
    return {k: v.clone() for k, v in build_seeded(make, seed=seed, name=name).state_dict().items()}


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@of_all
def test_two_builds_have_the_same_bits_whatever_the_global_seed(
    make: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(1)
    first = state(make)
    torch.manual_seed(2)
    torch.rand(3)
    assert is_same(first, state(make))


@of_all
def test_the_global_generator_is_left_alone(make: Callable[[], nn.Module]) -> None:
    before = torch.get_rng_state()
    state(make)
    assert torch.equal(torch.get_rng_state(), before)


@of_drawn
def test_another_seed_or_another_name_gives_other_bits(make: Callable[[], nn.Module]) -> None:
    first = state(make)
    assert not is_same(first, state(make, seed=2))
    assert not is_same(first, state(make, name="another"))


@of_all
def test_the_distribution_stays_that_of_torch(make: Callable[[], nn.Module]) -> None:
    """Constants are equal; what is drawn has about the same spread."""
    torch.manual_seed(5)
    expected = make().state_dict()
    for name, value in state(make).items():
        if value.is_floating_point() and expected[name].unique().numel() > 15:
            assert value.std().item() == pytest.approx(expected[name].std().item(), rel=0.9), name
        elif expected[name].unique().numel() == 1:
            assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("name", [name for name in ALL if name != "bare parameters"])
def test_the_order_of_construction_does_not_matter(name: str) -> None:
    def ordered(first: bool) -> nn.Module:
        both = nn.ModuleDict()
        for key in ("a", "b") if first else ("b", "a"):
            both[key] = ALL[name]() if key == "a" else nn.Embedding(3, 3)
        return both

    one, other = state(lambda: ordered(True)), state(lambda: ordered(False))
    assert is_same(one, other)


def test_two_layers_of_one_kind_have_other_bits() -> None:
    weights = state(lambda: nn.Sequential(nn.Embedding(4, 4), nn.Embedding(4, 4)))
    assert not torch.equal(weights["0.weight"], weights["1.weight"])


def test_a_thread_that_draws_at_the_same_time_changes_nothing() -> None:
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            torch.rand(10)

    expected = state(MODULES["Transformer"])
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert all(is_same(expected, state(MODULES["Transformer"])) for _ in range(5))
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", MODELS)
def test_the_built_in_models_use_the_rule_for_convolutions_and_linear_layers(name: str) -> None:
    model = build_seeded(lambda: MODELS[name]((3, 32, 32), 10), seed=1, name=name)
    drawn = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    assert all(isinstance(m, nn.Conv2d | nn.Linear | nn.GroupNorm | nn.BatchNorm2d) for m in drawn)
