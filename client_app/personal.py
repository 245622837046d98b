"""A model of the client's own, trained and evaluated beside the one for all (Ditto)."""

import logging

import numpy as np

from client_app.client_data import Local
from client_app.evaluator import Evaluated, evaluate
from client_app.personal_store import Keepsake, Kept
from client_app.trainer import train
from common.errors import ClientError
from common.methods import LocalRule
from common.types import Buffers, Vector
from common.wire import Order

logger = logging.getLogger("flwr")


def train_personal(
    local: Local,
    keepsake: Keepsake,
    pull: float,
    order: Order,
    received: Vector,
    buffers: Buffers,
) -> None:
    """Take the round's steps on the client's own model and keep it.

    A model that leaves the finite numbers starts again as the one received.

    Args:
        local: the client; its loaded model is written over.
        keepsake: where the model is kept.
        pull: lambda.
        order: the round and its learning rate.
        received: the model for all [d], to which the own one is pulled.
        buffers: those of the model for all.

    Raises:
        ClientError: the model cannot be kept.
    """
    flat, config = local.flat, local.config
    own = keepsake.newest(order.round - 1) or Kept(0, received, buffers)
    flat.load(own.weights, own.buffers)
    rule = LocalRule(proximal_weight=pull, anchor=received)
    try:
        train(
            flat, local.data, local.split.train, config.train, rule,
            lr=order.lr, seed=config.seed, path=(order.round, local.client),
        )  # fmt: skip
        own = Kept(order.round, flat.take_weights(), flat.take_buffers())
        values = (own.weights, *own.buffers.values())
        if not all(np.isfinite(value).all() for value in values):
            raise ClientError("its numbers are not finite any more")
    except ClientError as error:
        logger.warning("this client's own model starts again as the one received: %s", error)
        own = Kept(order.round, received, buffers)
    keepsake.put(own)


def evaluate_personal(local: Local, keepsake: Keepsake, round: int) -> tuple[Evaluated, int]:  # noqa: A002
    """Count the right answers of the client's own model after `round`, and say how old it is.

    A client that has none yet is served by the model that is loaded, the one received; its round
    is then 0.
    """
    own = keepsake.newest(round)
    if own:
        local.flat.load(own.weights, own.buffers)
    return evaluate(local.flat, local.data, local.split.test), own.round if own else 0
