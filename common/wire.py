"""What travels: orders and replies as Flower records, checked when they are read.

Our own apps send the trainable vector as one flat float32 array, since Flower posts every array
of a message separately; the buffers go beside it in the same ArrayRecord, so that a message
always holds exactly one. Clients of other people's apps send and get named arrays. A method's
own vectors (control variates) travel as little-endian float32 bytes in the ConfigRecord, with
their size and a digest; nothing is ever unpickled.
"""

import hashlib
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import inf, isfinite
from typing import Any, Protocol, TypeVar, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, MetricRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib import format as npy
from numpy.typing import NDArray

from common.errors import WireError
from common.geometry import all_finite
from common.layout import Layout, Tensor
from common.types import LOSS, LOSS_BEFORE, STEPS, Buffers, ClientId, Vector

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
WEIGHTS, BUFFERS, COUNTERS = "weights", "buffers", "counters"
ROUND, LR = "server-round", "lr"
LAYOUT, CLIENT, PATIENCE = "keel-layout", "keel-client", "keel-patience"
EXAMPLES, LR_SUM = "num-examples", "lr-sum"
SECONDS, START_SECONDS = "seconds", "start-seconds"
GRADIENT, GRADIENT_ERROR = "gradient-norm", "gradient-error"
SMOOTHNESS = "smoothness"
OWN_METRICS = {
    EXAMPLES,
    STEPS,
    LR_SUM,
    LOSS,
    LOSS_BEFORE,
    SECONDS,
    START_SECONDS,
    GRADIENT,
    GRADIENT_ERROR,
    SMOOTHNESS,
}  # of our own ClientApp, no more
CORRECT, LOSS_SUM = "correct", "loss-sum"
LATE_SECONDS = 10.0  # past the deadline, in which a reply is noticed, not used
PERSONAL, PERSONAL_ROUND = "personal-", "personal-round"  # the counts of a client's own model
MOST_EXAMPLES = 2**53  # beyond, whole numbers are not exact as floats
VECTOR = "fedkeel."  # prefix of a method's vectors: "fedkeel.shift" and "fedkeel.shift.digest"

# BatchNorm's buffers by the last part of their name, for state dicts that do not say what is one.
BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)


@lru_cache(maxsize=512)
def _head_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what stands before the numbers where numpy writes such an array."""
    head = io.BytesIO()
    said = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(head, said)
    return head.getvalue()


def _read_head(data: bytes, tensor: Tensor) -> tuple[int, bool]:
    """Return where the numbers begin, and whether they are in Fortran's order."""
    stream = io.BytesIO(data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("an .npy version other than 1.0")
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    except Exception as error:  # numpy evaluates the header; a hostile one trips it in many ways
        raise WireError(
            f'the bytes of "{tensor.name}" are not a plain numpy array: {error}'
        ) from None
    if dtype != np.dtype(tensor.dtype) or dtype.hasobject or shape != tensor.shape:
        raise WireError(
            f'the bytes of "{tensor.name}" hold {dtype}{list(shape)}, not what the message says'
        )
    return stream.tell(), fortran


def read_array(array: Array, tensor: Tensor) -> NDArray[Any]:
    """Return the array as a read-only view of the bytes that came, after checking all of it.

    Shape, dtype and the number of bytes are compared before anything is allocated, so a header
    that lies costs nothing.

    Raises:
        WireError: not the tensor that was expected.
    """
    name = tensor.name
    if array.dtype != tensor.dtype or tuple(array.shape) != tensor.shape:
        raise WireError(
            f'expected "{name}" as {tensor.dtype}{list(tensor.shape)}, '
            f"got {array.dtype}{list(array.shape)}"
        )
    head, dtype, fortran = _head_of(tensor.dtype, tensor.shape), np.dtype(tensor.dtype), False
    start = len(head)
    if not array.data.startswith(head):  # another way to write the same, or none
        start, fortran = _read_head(array.data, tensor)
    if len(array.data) - start != dtype.itemsize * tensor.size:
        raise WireError(
            f'"{name}" should have {dtype.itemsize * tensor.size} bytes of data, '
            f"it has {len(array.data) - start}"
        )
    values: NDArray[Any] = np.frombuffer(array.data, dtype, tensor.size, start)
    return values.reshape(tensor.shape, order="F" if fortran else "C")


def _array_of(vector: Vector) -> Array:
    """Return what Array(vector) is, with one copy instead of two."""
    head = _head_of(str(vector.dtype), vector.shape)
    data = b"".join((head, np.ascontiguousarray(vector).view(np.uint8).data))
    return Array(dtype=str(vector.dtype), shape=vector.shape, stype=SType.NUMPY, data=data)


class Codec(Protocol):
    """How weights and buffers become an ArrayRecord and back."""

    @property
    def layout(self) -> Layout:
        """The model's layout."""

    def pack(self, weights: Vector, buffers: Buffers) -> ArrayRecord:
        """Return the record that travels."""

    def unpack(self, record: ArrayRecord) -> tuple[Vector, Buffers]:
        """Return weights [d] and buffers, checked; raises WireError."""


@dataclass(frozen=True)
class FlatCodec:
    """One flat float32 vector; floating buffers as one float64 array, whole ones as one int64."""

    layout: Layout

    def _parts(self) -> tuple[Mapping[str, Tensor], Mapping[str, list[Tensor]]]:
        groups = {
            BUFFERS: [t for t in self.layout.buffers if np.dtype(t.dtype).kind == "f"],
            COUNTERS: [t for t in self.layout.buffers if np.dtype(t.dtype).kind != "f"],
        }
        dtypes = {BUFFERS: "float64", COUNTERS: "int64"}
        expected = {
            key: Tensor(key, (sum(t.size for t in tensors),), dtypes[key])
            for key, tensors in groups.items()
            if tensors
        }
        return {WEIGHTS: Tensor(WEIGHTS, (self.layout.size,)), **expected}, groups

    def pack(self, weights: Vector, buffers: Buffers) -> ArrayRecord:
        """Return {"weights": [d], "buffers": [...], "counters": [...]}; the latter if any."""
        expected, groups = self._parts()
        record = {WEIGHTS: _array_of(weights)}
        for key, tensors in groups.items():
            if tensors:
                flat = np.concatenate([np.ravel(buffers[tensor.name]) for tensor in tensors])
                record[key] = Array(flat.astype(expected[key].dtype))
        return ArrayRecord(record)

    def unpack(self, record: ArrayRecord) -> tuple[Vector, Buffers]:
        """Return weights [d] and buffers in their own shapes and dtypes."""
        expected, groups = self._parts()
        read = _read_all(record, expected)
        buffers: dict[str, NDArray[Any]] = {}
        for key, tensors in groups.items():
            start = 0
            for tensor in tensors:
                part = read[key][start : start + tensor.size]
                with np.errstate(over="ignore"):  # whoever looks through them finds it infinite
                    buffers[tensor.name] = part.reshape(tensor.shape).astype(tensor.dtype)
                start += tensor.size
        return read[WEIGHTS], buffers


@dataclass(frozen=True)
class NamedCodec:
    """The named arrays of a state dict, for clients that are not ours."""

    layout: Layout
    order: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord, buffers: tuple[str, ...] | None = None) -> "NamedCodec":
        """Derive the codec from the first model.

        Args:
            record: the first weights, by name.
            buffers: names that are not trained; by default BatchNorm's statistics and whatever
                is not floating.

        Raises:
            WireError: a trainable array is not float32, or a buffer is not there.
        """
        trained: list[Tensor] = []
        rest: list[Tensor] = []
        if unknown := set(buffers or ()) - record.keys():
            raise WireError(f"there are no arrays {sorted(unknown)} that could be buffers")
        for name, array in record.items():
            tensor = Tensor(name, tuple(array.shape), array.dtype)
            try:
                floating = np.dtype(array.dtype).kind == "f"
            except TypeError:
                raise WireError(f'"{name}" is of an unknown type, {array.dtype}') from None
            guess = name.rpartition(".")[2] in BATCH_NORM or not floating
            (rest if (guess if buffers is None else name in buffers) else trained).append(tensor)
        odd = {t.name: t.dtype for t in trained if t.dtype != "float32"}
        if odd or not trained:
            raise WireError(
                f"expected float32 weights, got {odd or 'no arrays at all'}; name arrays that are "
                "not trained in `buffers`"
            )
        return cls(Layout(tuple(trained), tuple(rest)), tuple(record))

    def pack(self, weights: Vector, buffers: Buffers) -> ArrayRecord:
        """Return the named arrays in the order in which they first came."""
        named = {**self.layout.unflatten(weights), **buffers}
        return ArrayRecord({name: Array(named[name]) for name in self.order})

    def unpack(self, record: ArrayRecord) -> tuple[Vector, Buffers]:
        """Return weights [d] and buffers by name."""
        tensors = {t.name: t for t in (*self.layout.tensors, *self.layout.buffers)}
        read = _read_all(record, tensors)
        return self.layout.flatten(read), {t.name: read[t.name] for t in self.layout.buffers}


def _read_all(record: ArrayRecord, expected: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    if record.keys() != expected.keys():
        missing, extra = (
            sorted(expected.keys() - record.keys()),
            sorted(record.keys() - expected.keys()),
        )
        raise WireError(
            "expected other arrays: " + "; ".join(
                f"{what} {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
                for what, names in (("missing", missing), ("unknown", extra))
                if names
            )
        )  # fmt: skip
    return {name: read_array(record[name], tensor) for name, tensor in expected.items()}


def put_vectors(config: ConfigRecord, vectors: Mapping[str, Vector]) -> None:
    """Write a method's vectors into the record as little-endian float32 bytes with a digest."""
    for name, vector in vectors.items():
        data = np.ascontiguousarray(vector, dtype="<f4").tobytes()
        config[VECTOR + name] = data
        config[f"{VECTOR}{name}.digest"] = hashlib.blake2b(data, digest_size=8).digest()


def get_vectors(config: ConfigRecord) -> dict[str, Vector]:
    """Read a method's vectors.

    Raises:
        WireError: damaged bytes.
    """
    vectors: dict[str, Vector] = {}
    for key, data in config.items():
        if not key.startswith(VECTOR) or key.endswith(".digest"):
            continue
        name = key.removeprefix(VECTOR)
        if not isinstance(data, bytes) or len(data) % 4:
            raise WireError(f'the vector "{name}" is not a whole number of float32 values')
        if hashlib.blake2b(data, digest_size=8).digest() != config.get(key + ".digest"):
            raise WireError(f'the vector "{name}" does not match its digest')
        vectors[name] = np.frombuffer(data, dtype="<f4")
    return vectors


def records_of(content: RecordDict, kind: type[R]) -> dict[str, R]:
    """Return the records of one kind.

    Flower's own properties (`content.array_records` and the like) make, each time they are used, a
    cycle that keeps the whole message in memory until Python's next full garbage collection.
    """
    return {key: record for key, record in content.items() if isinstance(record, kind)}


def payload_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's records: array data, config values, metrics."""
    total = 0
    for arrays in records_of(content, ArrayRecord).values():
        total += sum(len(array.data) for array in arrays.values())
    values: list[Any] = []
    for record in records_of(content, ConfigRecord).values():
        values += record.values()
    for metrics in records_of(content, MetricRecord).values():
        values += metrics.values()
    for value in values:
        parts = value if isinstance(value, list) else [value]
        total += sum(len(part) if isinstance(part, str | bytes) else 8 for part in parts)
    return total


def seconds_late(metadata: Metadata) -> float:
    """Return for how long nobody has waited for the reply to an order, by this machine's clock.

    Below 0 it is the time that is left. The two clocks are those of the server and of this node;
    a node whose clock is far from the server's is not let in.
    """
    deadline = metadata.created_at + metadata.ttl - LATE_SECONDS
    return time.time() - deadline


def query_content(client: ClientId, patience: float) -> RecordDict:
    """Return the content of a query: who is asked, if the server knows, and for how long."""
    return RecordDict({CONFIG: ConfigRecord({CLIENT: client, PATIENCE: patience})})


def client_id_of(content: RecordDict) -> ClientId:
    """Return the id that the server gave the receiver of this message, "" for none."""
    return str(records_of(content, ConfigRecord).get(CONFIG, ConfigRecord()).get(CLIENT, ""))


def timeout_of(content: RecordDict) -> float | None:
    """Return for how many seconds the server waits for the reply, None if it does not say."""
    told = records_of(content, ConfigRecord).get(CONFIG, ConfigRecord()).get(PATIENCE)
    return float(told) if isinstance(told, int | float) and told > 0 else None


@dataclass(frozen=True)
class Order:
    """What the server asks of one client: train, or evaluate, these weights.

    `server_payload` holds the method's own vectors; `layout` is the digest of the model's layout;
    `client` is the id of whom it is for, which real nodes do not know themselves; `patience` for
    how many seconds the server waits.
    """

    round: int
    lr: float
    layout: str
    server_payload: Mapping[str, Vector] = field(default_factory=dict)
    client: ClientId = ""
    patience: float = 0.0

    def config(self) -> ConfigRecord:
        """Return the part of the order that is not the model."""
        config = ConfigRecord({ROUND: self.round, LR: self.lr, LAYOUT: self.layout})
        if self.client:
            config[CLIENT] = self.client
        if self.patience:
            config[PATIENCE] = self.patience
        put_vectors(config, self.server_payload)
        return config

    @classmethod
    def read(cls, content: RecordDict, layout: Layout) -> "Order":
        """Read and check an order on the client.

        Raises:
            WireError: the server's model is another one, or something is missing.
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
    """What a client returns after training."""

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
        return RecordDict(
            {
                ARRAYS: codec.pack(self.weights, self.buffers),
                METRICS: to_metric_record(
                    {
                        EXAMPLES: self.examples,
                        STEPS: self.steps,
                        LR_SUM: self.lr_sum,
                        **self.metrics,
                    }
                ),
                CONFIG: config,
            }
        )


@dataclass(frozen=True)
class ClientCard:
    """What a client says of itself when it is asked: that it is ready, and with what.

    Attributes:
        partition: which part of a dealt data set it holds; "" for pictures of its own.
        device: a sentence about where it trains.
        shape: channels, height and width of its images.
        classes: number of classes.
        train_examples: how many samples it trains on.
        test_examples: how many it tests on.
    """

    partition: str
    device: str
    shape: tuple[int, int, int]
    classes: int
    train_examples: int
    test_examples: int

    def record(self) -> RecordDict:
        """Return the card as a ConfigRecord."""
        values = {**vars(self), "shape": list(self.shape)}
        return RecordDict({CONFIG: ConfigRecord(values)})

    @classmethod
    def read(cls, content: RecordDict) -> "ClientCard":
        """Read a card.

        Raises:
            WireError: it is not one.
        """
        said: dict[str, Any] = dict(records_of(content, ConfigRecord).get(CONFIG, ConfigRecord()))
        types = {name: type(value) for name, value in said.items()}
        if types != _card_types() or len(said["shape"]) != 3:
            raise WireError(
                f"expected a client's card, got the keys {sorted(said)}; both sides must run the "
                "same version of FedKeel"
            )
        return cls(**{**said, "shape": tuple(said["shape"])})


@cache
def _card_types() -> dict[str, Any]:
    return {**get_type_hints(ClientCard), "shape": list}


def read_train_reply(
    content: RecordDict,
    codec: Codec,
    round: int,  # noqa: A002
    *,
    arrays_key: str = ARRAYS,
    weight_key: str = EXAMPLES,
) -> TrainReply:
    """Read and check a reply, ours or an ordinary Flower client's.

    Ordinary clients say neither round nor steps: steps and lr_sum are then 0, which only methods
    that need them refuse. They may report any metrics, ours none that we do not know. The weights
    are the one thing that is not looked through here: that is done, for all replies at once, when
    they become displacements (`geometry.differences`), and `refuse_non_finite` says what is wrong.

    Raises:
        WireError: one reason, in words.
    """
    record = content.get(arrays_key) or next(iter(records_of(content, ArrayRecord).values()), None)
    if not isinstance(record, ArrayRecord):
        raise WireError(f'no ArrayRecord "{arrays_key}" in the reply')
    metrics = read_metrics(content)
    weight = metrics.pop(weight_key, None)
    if weight is None:
        raise WireError(f'no number "{weight_key}" in the reply\'s metrics')
    if not 0 <= weight <= MOST_EXAMPLES or weight != int(weight):
        raise WireError(
            f'"{weight_key}" must be a whole number from 0 to {MOST_EXAMPLES}, not {weight!r}'
        )
    if weight == 0:
        raise WireError(f'"{weight_key}" is 0: the client has nothing to train on')
    steps, lr_sum = metrics.pop(STEPS, 0), metrics.pop(LR_SUM, 0.0)
    if not (0 <= steps < inf and 0 <= lr_sum < inf):  # not so for NaN
        raise WireError(
            f'"{STEPS}" and "{LR_SUM}" must be finite and at least 0, not {steps!r} and {lr_sum!r}'
        )
    config = next(iter(records_of(content, ConfigRecord).values()), ConfigRecord())
    if CLIENT in config and (odd := sorted(metrics.keys() - OWN_METRICS)):
        raise WireError(
            f"the reply has metrics that this version does not know: {', '.join(odd)}; both sides "
            "must run the same version of FedKeel"
        )
    for key, expected in ((ROUND, round), (LAYOUT, codec.layout.digest)):
        if key in config and config[key] != expected:
            raise WireError(f"the reply is for {key} {config[key]!r}, not {expected!r}")
    weights, buffers = codec.unpack(record)
    client_payload = get_vectors(config)
    for name, values in {**buffers, **client_payload}.items():
        refuse_non_finite(name, values, codec.layout)
    return TrainReply(
        client=str(config.get(CLIENT, "")),
        round=round,
        weights=weights,
        buffers=buffers,
        examples=int(weight),
        steps=int(steps),
        lr_sum=float(lr_sum),
        client_payload=client_payload,
        metrics={key: value for key, value in metrics.items() if isfinite(value)},
    )


def refuse_non_finite(name: str, values: NDArray[Any], layout: Layout) -> None:
    """Raise a WireError that says where `values`, the weights or something else, are not finite."""
    if all_finite(values):
        return
    bad = ~np.isfinite(values)
    where = name
    if name == WEIGHTS:
        hit = [tensor for tensor, span in layout.spans.items() if bad[span].any()]
        where = f"{', '.join(hit[:3])}{' ...' if len(hit) > 3 else ''}"
    raise WireError(f"{int(bad.sum())} value(s) are NaN or infinite in {where}")


def read_metrics(content: RecordDict) -> dict[str, float]:
    """Return the scalar metrics of the reply's MetricRecord; an empty dict if it has none."""
    record = next(iter(records_of(content, MetricRecord).values()), MetricRecord())
    return {key: _number(value) for key, value in record.items() if not isinstance(value, list)}


def _number(value: float) -> float:
    try:
        return value if isfinite(value) else float(value)
    except OverflowError:  # a whole number beyond the floats
        return inf


def to_metric_record(values: Mapping[str, Any]) -> MetricRecord:
    """Return a MetricRecord of Python numbers; the one place where numpy and torch scalars go.

    Undefined values (None, NaN, infinite) are left out.
    """
    record = MetricRecord()
    for key, value in values.items():
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, bool):
            number = int(number)
        if isinstance(number, int) or (isinstance(number, float) and isfinite(number)):
            record[key] = number
    return record
