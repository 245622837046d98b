"""A model of the client's own, trained and evaluated beside the one for all (Ditto)."""

import logging

import numpy as np

from client_app.client_data import ClientData
from client_app.evaluator import EvaluationResult, evaluate
from client_app.personal_store import PersonalModel, PersonalStore
from client_app.trainer import train
from common.errors import ClientError
from common.methods import LocalRule
from common.types import Buffers, Vector
from common.wire.messages import Order

logger = logging.getLogger("flwr")


def train_personal(
    client: ClientData,
    store: PersonalStore,
    pull: float,
    order: Order,
    received: Vector,
    buffers: Buffers,
) -> None:
    """Take the round's steps on the client's own model and keep it.

    A model that leaves the finite numbers starts again as the one received.

    Args:
        client: the client; its loaded model is written over.
        store: where the model is kept.
        pull: lambda.
        order: the round and its learning rate.
        received: the model for all [d], to which the own one is pulled.
        buffers: those of the model for all.

    Raises:
        ClientError: the model cannot be kept.
    """
    flat, config = client.flat, client.config
    own = store.latest(order.round - 1) or PersonalModel(0, received, buffers)
    flat.load(own.weights, own.buffers)
    rule = LocalRule(proximal_weight=pull, anchor=received)
    try:
        train(
            flat, client.data, client.split.train, config.train, rule,
            lr=order.lr, seed=config.seed, path=(order.round, client.client_id),
        )  # fmt: skip
        own = PersonalModel(order.round, flat.copy_weights(), flat.copy_buffers())
        values = (own.weights, *own.buffers.values())
        if not all(np.isfinite(value).all() for value in values):
            raise ClientError("its numbers are not finite any more")
    except ClientError as error:
        logger.warning("this client's own model starts again as the one received: %s", error)
        own = PersonalModel(order.round, received, buffers)
    store.save(own)


def evaluate_personal(
    client: ClientData, store: PersonalStore, round_number: int
) -> tuple[EvaluationResult, int]:
    """Evaluate the client's own model after `round_number`; return the counts and its round.

    A client that has none yet is served by the model that is loaded, the one received; its round
    is then 0.
    """
    own = store.latest(round_number)
    if own:
        client.flat.load(own.weights, own.buffers)
    return evaluate(client.flat, client.data, client.split.test), own.round if own else 0
