"""Every method in the table is a ready Flower strategy with its own settings."""

import inspect
from dataclasses import fields

import pytest
from flwr.serverapp.strategy import Strategy

import fedkeel
import server_app.strategies as ready
from common.errors import ConfigError
from common.methods import METHODS, FedPCD
from common.types import Buffers
from server_app.ready_strategy import StrategyOptions
from server_app.state.options import Options
from server_app.strategies import STRATEGIES
from server_app.strategy import MethodStrategy


@pytest.mark.parametrize("name", METHODS)
def test_each_method_has_a_strategy_under_its_own_name(name: str) -> None:
    strategy = getattr(fedkeel, METHODS[name].__name__)
    assert strategy is STRATEGIES[name]
    assert issubclass(strategy, Strategy)
    assert strategy().method == METHODS[name]()
    assert strategy().options == Options()


@pytest.mark.parametrize("name", METHODS)
def test_its_documentation_lists_every_setting_with_its_default(name: str) -> None:
    text = str(STRATEGIES[name].__doc__)
    for item in (*fields(METHODS[name]), *fields(Options)):
        assert f"    {item.name}: " in text
        assert f"(default {item.default!r})" in text


def test_settings_reach_the_method_and_the_options() -> None:
    buffers: Buffers | tuple[str, ...] = ("running",)
    strategy = ready.FedPCD(tau=0.5, history=3, fraction_train=0.1, seed=4, buffers=buffers)
    assert strategy.method == FedPCD(tau=0.5, history=3)
    assert strategy.options == Options(fraction_train=0.1, seed=4)
    assert strategy.buffers == buffers


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"histroy": 3}, r'FedPCD has no setting "histroy" \(did you mean "history"\?\)'),
        ({"fraction_fit": 0.1}, "did you mean"),
        ({"tau": 2.0}, "FedPCD: tau must be in"),
        ({"fraction_train": 1.5}, "Options: fraction-train must be in"),
        ({"min_replies": 0}, "Options: min-replies must be at least 1"),
    ],
)
def test_invalid_settings_are_refused_by_name(given: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ready.FedPCD(**given)


def test_typed_keywords_are_the_settings_the_options_and_the_parts() -> None:
    parts = inspect.signature(MethodStrategy.__init__).parameters.values()
    names = {part.name for part in parts if part.kind is part.KEYWORD_ONLY}
    options = {item.name: item.type for item in fields(Options)}
    assert StrategyOptions.__annotations__.keys() == options.keys() | names
    assert options.items() <= StrategyOptions.__annotations__.items()
    for name, strategy in STRATEGIES.items():
        named = [
            parameter
            for parameter in inspect.signature(strategy).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        assert [(p.name, p.default, p.annotation) for p in named] == [
            (item.name, item.default, item.type) for item in fields(METHODS[name])
        ]


def test_help_lists_the_settings() -> None:
    assert "tau: share of its own unit step" in str(inspect.getdoc(STRATEGIES["fedpcd"]))


def test_wiring_of_the_wrong_kind_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"local_lr must be a function, not 0\.1"):
        STRATEGIES["fedavg"](local_lr=0.1)
