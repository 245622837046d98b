"""The content of an order: the model, and a config that ordinary Flower clients understand."""

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from common.wire.messages import LR, ROUND, Order
from server_app.state.options import Options


def order_content(
    arrays: ArrayRecord, config: ConfigRecord, order: Order, options: Options, *, has_lr: bool
) -> RecordDict:
    """Return the content of an order.

    Args:
        arrays: the model.
        config: values of the caller. They take precedence over those of the order.
        order: the order without the model.
        options: the names of the records.
        has_lr: whether the server sets the local learning rate. An ordinary client without that
            must find no other "lr" than one in `config`.
    """
    merged = ConfigRecord({**order.config(), **config, ROUND: order.round})
    if has_lr:
        merged[LR] = order.lr
    elif LR not in config:
        del merged[LR]
    return RecordDict({options.arrayrecord_key: arrays, options.configrecord_key: merged})
