"""The personal model of a client, trained and evaluated besides the global one (Ditto)."""

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
    proximal_weight: float,
    order: Order,
    received: Vector,
    buffers: Buffers,
) -> None:
    """Train the personal model for one round and save it.

    A personal model with NaN or infinite values is replaced by the received global model.

    Args:
        client: the client. Its loaded model is overwritten.
        store: where the personal model is saved.
        proximal_weight: lambda, the pull towards the global model.
        order: the round and its learning rate.
        received: the weights of the global model [d].
        buffers: the buffers of the global model.

    Raises:
        ClientError: the personal model cannot be saved.
    """
    flat, config = client.flat, client.config
    model = store.latest(order.round - 1) or PersonalModel(0, received, buffers)
    flat.load(model.weights, model.buffers)
    rule = LocalRule(proximal_weight=proximal_weight, anchor=received)
    try:
        train(
            flat, client.data, client.split.train, config.train, rule,
            lr=order.lr, seed=config.seed, path=(order.round, client.client_id),
        )  # fmt: skip
        model = PersonalModel(order.round, flat.copy_weights(), flat.copy_buffers())
        values = (model.weights, *model.buffers.values())
        if not all(np.isfinite(value).all() for value in values):
            raise ClientError("it has NaN or infinite values")
    except ClientError as error:
        logger.warning("the personal model is replaced by the global model: %s", error)
        model = PersonalModel(order.round, received, buffers)
    store.save(model)


def evaluate_personal(
    client: ClientData, store: PersonalStore, round_number: int
) -> tuple[EvaluationResult, int]:
    """Evaluate the personal model after `round_number`. Return the counts and its round.

    A client without a personal model evaluates the loaded global model, as round 0.
    """
    model = store.latest(round_number)
    if model:
        client.flat.load(model.weights, model.buffers)
    counts = evaluate(client.flat, client.data, client.split.test)
    return counts, model.round if model else 0
