"""The methods as ready Flower strategies: FedAvg, FedPCD, FedPVR, Scaffold and whatever is new.

    from server_app.strategies import FedPCD
    strategy = FedPCD(tau=0.02, history=10, fraction_train=0.1)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=50)

A strategy takes its method's settings and `server_app.options.Options`, all by name; ordinary
ClientApps that return "arrays" and "num-examples" will do, unless the method needs a client half.
"""

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from common.errors import ConfigError, did_you_mean
from common.methods import METHODS, Method
from server_app.options import Options
from server_app.strategy import MethodStrategy

WIRING = [
    name
    for name, parameter in inspect.signature(MethodStrategy.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
]


class ReadyStrategy(MethodStrategy):
    """Base of the ready strategies: sorts its arguments into method, options and wiring."""

    method_type: ClassVar[type[Method[Any]]]

    def __init__(self, **settings: Any) -> None:
        names = {
            "method": [item.name for item in fields(self.method_type)],
            "options": [item.name for item in fields(Options)],
            "wiring": WIRING,
        }
        known = [name for group in names.values() for name in group]
        if unknown := settings.keys() - set(known):
            word = min(unknown)
            raise ConfigError(
                f'{type(self).__name__} has no setting "{word}"{did_you_mean(word, known)}; '
                f"it has: {', '.join(known)}"
            )
        groups = {
            group: {name: settings[name] for name in mine if name in settings}
            for group, mine in names.items()
        }
        super().__init__(
            self.method_type(**groups["method"]), Options(**groups["options"]), **groups["wiring"]
        )


def _ready(method: type[Method[Any]]) -> type[ReadyStrategy]:
    settings = "\n".join(
        f"    {item.name}: {item.metadata['help']} (default {item.default!r})."
        for item in (*fields(method), *fields(Options))
    )
    doc = f"{inspect.getdoc(method)}\n\nSettings:\n{settings}\n"
    wiring = inspect.signature(MethodStrategy.__init__).parameters
    given = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default)
        for item in (*fields(method), *fields(Options))
    ]
    body = {
        "method_type": method,
        "__doc__": doc,
        "__module__": __name__,
        "__signature__": inspect.Signature([*given, *(wiring[name] for name in WIRING)]),
    }
    return type(method.__name__, (ReadyStrategy,), body)


STRATEGIES: Mapping[str, type[ReadyStrategy]] = {
    name: _ready(method) for name, method in METHODS.items()
}


def __getattr__(name: str) -> type[ReadyStrategy]:
    """Give each strategy under the name of its method's class."""
    for strategy in STRATEGIES.values():
        if strategy.__name__ == name:
            return strategy
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
