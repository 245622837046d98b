"""The messages themselves: the server's order, a client's reply, and the client card."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from flwr.app import ArrayRecord, ConfigRecord, Metadata, RecordDict

from common.errors import WireError
from common.io.text import name_list, single_line
from common.layout import Layout
from common.types import STEPS, Buffers, ClientId, Vector
from common.wire.arrays import Codec, refuse_non_finite
from common.wire.content import ARRAYS, CONFIG, METRICS, records_of
from common.wire.reply_metrics import (
    EXAMPLES,
    LR_SUM,
    MAX_EXAMPLES,
    OWN_METRICS,
    read_metrics,
    to_metric_record,
)
from common.wire.vectors import get_vectors, put_vectors

ROUND, LR = "server-round", "lr"
LAYOUT, CLIENT, TIMEOUT = "keel-layout", "keel-client", "keel-patience"
LATE_SECONDS = 10.0  # after the deadline. The server records such a reply but does not use it


def seconds_late(metadata: Metadata) -> float:
    """Return the seconds since the deadline of an order, negative before the deadline.

    The deadline comes from the server's clock, the present time from this machine's clock. The
    server does not admit a node whose clock is far from its own.
    """
    deadline = metadata.created_at + metadata.ttl - LATE_SECONDS
    return time.time() - deadline


def query_content(client: ClientId, timeout: float) -> RecordDict:
    """Return the content of a query for the client card.

    Args:
        client: id of the receiver, "" if the server does not know it.
        timeout: seconds that the server waits for the card.
    """
    return RecordDict({CONFIG: ConfigRecord({CLIENT: client, TIMEOUT: timeout})})


def client_id_of(content: RecordDict) -> ClientId:
    """Return the client id that the server wrote into a message, "" if there is none."""
    return str(config_of(content).get(CLIENT, ""))


def timeout_of(content: RecordDict) -> float | None:
    """Return for how many seconds the server waits for the reply, None if it does not say."""
    timeout = config_of(content).get(TIMEOUT)
    return float(timeout) if isinstance(timeout, int | float) and timeout > 0 else None


def config_of(content: RecordDict) -> ConfigRecord:
    """Return the ConfigRecord of a message, an empty one if it has none."""
    return records_of(content, ConfigRecord).get(CONFIG, ConfigRecord())


@dataclass(frozen=True)
class Order:
    """The server's message to one client: train, or evaluate, these weights.

    Attributes:
        round: number of the round.
        lr: local learning rate.
        layout: digest of the model's layout.
        server_payload: the method's own vectors.
        client: id of the receiver, which a real node does not know itself.
        timeout: seconds that the server waits for the reply, 0 if it does not say.
    """

    round: int
    lr: float
    layout: str
    server_payload: Mapping[str, Vector] = field(default_factory=dict)
    client: ClientId = ""
    timeout: float = 0.0

    def config(self) -> ConfigRecord:
        """Return the order without the model."""
        config = ConfigRecord({ROUND: self.round, LR: self.lr, LAYOUT: self.layout})
        if self.client:
            config[CLIENT] = self.client
        if self.timeout:
            config[TIMEOUT] = self.timeout
        put_vectors(config, self.server_payload)
        return config

    @classmethod
    def read(cls, content: RecordDict, layout: Layout) -> "Order":
        """Return the order in a message, checked against the client's layout.

        Raises:
            WireError: the server's model is another one, or a part is missing.
        """
        config = content.get(CONFIG)
        if not isinstance(config, ConfigRecord):
            raise WireError(f'the order has no ConfigRecord "{CONFIG}"')
        digest = config.get(LAYOUT)
        if digest != layout.digest:
            raise WireError(
                f"the server's model (layout {digest!r}) is not this client's ({layout.digest!r}): "
                "both sides must run the same version with the same model, data and classes"
            )
        round_, lr = config.get(ROUND), config.get(LR)
        if not isinstance(round_, int) or not isinstance(lr, float):
            raise WireError(f'the order needs "{ROUND}" (int) and "{LR}" (float)')
        return cls(round_, lr, layout.digest, get_vectors(config), client_id_of(content))


@dataclass(frozen=True)
class TrainReply:
    """The reply of a client after training.

    Attributes:
        client: the client's id, "" for an ordinary Flower client.
        round: number of the round.
        weights: the trained weights [d].
        buffers: buffers by name.
        examples: training samples.
        steps: number of local steps, 0 if the client does not say.
        lr_sum: sum of the learning rates of these steps, 0 if the client does not say.
        client_payload: the method's own vectors.
        metrics: further finite numbers.
    """

    client: str
    round: int
    weights: Vector
    buffers: Buffers
    examples: int
    steps: int
    lr_sum: float
    client_payload: Mapping[str, Vector] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def record(self, codec: Codec) -> RecordDict:
        """Return one ArrayRecord, one MetricRecord and one ConfigRecord, as Flower's mods need."""
        config = ConfigRecord({CLIENT: self.client, ROUND: self.round, LAYOUT: codec.layout.digest})
        put_vectors(config, self.client_payload)
        counts = {EXAMPLES: self.examples, STEPS: self.steps, LR_SUM: self.lr_sum}
        return RecordDict(
            {
                ARRAYS: codec.pack(self.weights, self.buffers),
                METRICS: to_metric_record({**counts, **self.metrics}),
                CONFIG: config,
            }
        )


def read_train_reply(
    content: RecordDict,
    codec: Codec,
    round: int,  # noqa: A002
    *,
    arrays_key: str = ARRAYS,
    weight_key: str = EXAMPLES,
) -> TrainReply:
    """Return a training reply of a FedKeel client or of an ordinary Flower client, checked.

    An ordinary client sends no round, and perhaps no steps. Steps and lr_sum are 0 then, which
    only methods that need them refuse. It may send any metrics, a FedKeel client only known ones.
    Everything is validated here except that the weights are finite: `geometry.differences` checks
    that for all replies at once.

    Args:
        content: the content of the reply.
        codec: how the model travels.
        round: number of the round that the reply must belong to.
        arrays_key: name of the model's record.
        weight_key: metric that weighs the reply.

    Raises:
        WireError: the reply cannot be used. The message says why in one line.
    """
    record = content.get(arrays_key) or next(iter(records_of(content, ArrayRecord).values()), None)
    if not isinstance(record, ArrayRecord):
        raise WireError(f'no ArrayRecord "{arrays_key}" in the reply')
    metrics = read_metrics(content)
    examples = _examples_of(metrics.pop(weight_key, None), weight_key)
    steps, lr_sum = metrics.pop(STEPS, 0), metrics.pop(LR_SUM, 0.0)
    if not (0 <= steps < inf and 0 <= lr_sum < inf):  # false for NaN as well
        raise WireError(
            f'"{STEPS}" and "{LR_SUM}" must be finite and at least 0, not {steps!r} and {lr_sum!r}'
        )
    config = next(iter(records_of(content, ConfigRecord).values()), ConfigRecord())
    if CLIENT in config and (unknown := sorted(metrics.keys() - OWN_METRICS)):
        raise WireError(
            f"the reply has metrics that this version does not know: {name_list(unknown)}; both "
            "sides must run the same version of FedKeel"
        )
    for key, expected in ((ROUND, round), (LAYOUT, codec.layout.digest)):
        if key in config and config[key] != expected:
            raise WireError(f"the reply is for {key} {config[key]!r}, not {expected!r}")
    weights, buffers = codec.unpack(record)
    client_payload = get_vectors(config)
    for name, values in {**buffers, **client_payload}.items():
        refuse_non_finite(name, values, codec.layout)
    finite = {key: value for key, value in metrics.items() if isfinite(value)}
    client = single_line(str(config.get(CLIENT, "")))
    return TrainReply(
        client, round, weights, buffers, examples, int(steps), float(lr_sum), client_payload, finite
    )


def _examples_of(weight: float | None, key: str) -> int:
    if weight is None:
        raise WireError(f'no number "{key}" in the reply\'s metrics')
    if not 0 <= weight <= MAX_EXAMPLES or weight != int(weight):
        raise WireError(f'"{key}" must be a whole number from 0 to {MAX_EXAMPLES}, not {weight!r}')
    if weight == 0:
        raise WireError(f'"{key}" is 0: the client has nothing to train on')
    return int(weight)
