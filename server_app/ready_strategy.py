"""Base of the ready strategies: keyword arguments become a method, round options and parts."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypedDict, Unpack

from flwr.serverapp import Grid

from common.errors import ConfigError, did_you_mean
from common.methods import Method
from common.types import ClientId
from common.wire.arrays import Codec
from server_app.round.evaluation_replies import MetricsFn
from server_app.round.ready_clients import ReadyClients
from server_app.state.options import Diagnose, Observer, Options
from server_app.state.server_state import ServerState
from server_app.strategy import MethodStrategy


class StrategyOptions(TypedDict, total=False):
    """Keyword arguments that every strategy takes in addition to the settings of its method.

    The first eighteen are the fields of `Options`. The others are arguments of `MethodStrategy`.
    """

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    clients: int
    over_selection: int
    server_lr: float
    seed: int
    eval_every: int
    min_replies: int
    max_void_rounds: int
    max_update_ratio: float
    max_update_norm: float
    retries: int
    patience: float
    start_timeout: float
    codec: Codec | None
    buffers: tuple[str, ...] | None
    local_lr: Callable[[int], float] | None
    registry: Callable[[Grid], ReadyClients]
    expected: tuple[ClientId, ...]
    observer: Observer | None
    diagnose: Diagnose | None
    store_state: Callable[[ServerState[Any]], ServerState[Any]] | None
    train_metrics_aggr_fn: MetricsFn | None
    evaluate_metrics_aggr_fn: MetricsFn | None


class ReadyStrategy(MethodStrategy):
    """Base of the strategies below: creates the round options from keyword arguments.

    Args:
        method: the method with its settings.
        **options: fields of `Options`, and keyword arguments of `MethodStrategy`.

    Raises:
        ConfigError: an argument is unknown, or its value is outside its range.
    """

    method_type: ClassVar[type[Method[Any]]]

    def __init_subclass__(cls) -> None:
        """List every setting with its default in the docstring of the strategy."""
        settings = "\n".join(
            f"    {item.name}: {item.metadata['help']} (default {item.default!r})."
            for item in (*fields(cls.method_type), *fields(Options))
        )
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nSettings:\n{settings}\n"

    def __init__(self, method: Method[Any], **options: Unpack[StrategyOptions]) -> None:
        given: Mapping[str, Any] = options
        known = [item.name for item in fields(method)] + list(StrategyOptions.__annotations__)
        if unknown := given.keys() - set(known):
            word = min(unknown)
            raise ConfigError(
                f'{type(self).__name__} has no setting "{word}"{did_you_mean(word, known)}; '
                f"it has: {', '.join(known)}"
            )
        of_rounds = {item.name for item in fields(Options)}
        super().__init__(
            method,
            Options(**{name: value for name, value in given.items() if name in of_rounds}),
            **{name: value for name, value in given.items() if name not in of_rounds},
        )
