"""Arrays on the wire: codecs between the model and an ArrayRecord.

Every array is checked against the expected shape and dtype before numpy reads it.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from common.errors import WireError
from common.flower_internals import SType
from common.geometry import all_finite
from common.io.text import name_list
from common.layout import Layout, Tensor
from common.types import Buffers, Vector

WEIGHTS, BUFFERS, COUNTERS = "weights", "buffers", "counters"

# Last part of the names of BatchNorm's buffers, for state dicts that do not mark their buffers.
BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")


@lru_cache(maxsize=512)
def _head_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header that numpy writes before the values of an array."""
    head = io.BytesIO()
    description = {
        "descr": npy.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    npy.write_array_header_1_0(head, description)
    return head.getvalue()


def _read_head(data: bytes, tensor: Tensor) -> tuple[int, bool]:
    """Return the position of the first value, and whether the values are in Fortran order."""
    stream = io.BytesIO(data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("an .npy version other than 1.0")
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    except Exception as error:  # numpy evaluates the header. A hostile one fails in many ways
        raise WireError(
            f'the bytes of "{tensor.name}" are not a plain numpy array: {error}'
        ) from None
    if dtype != np.dtype(tensor.dtype) or dtype.hasobject or shape != tensor.shape:
        raise WireError(
            f'the bytes of "{tensor.name}" hold {dtype}{list(shape)}, not what the message says'
        )
    return stream.tell(), fortran


def read_array(array: Array, tensor: Tensor) -> NDArray[Any]:
    """Return the array as a read-only view of the received bytes, after checking all of it.

    Shape, dtype and number of bytes are compared before anything is allocated, so a header with
    a wrong size costs no memory.

    Raises:
        WireError: the array is not the expected tensor.
    """
    name = tensor.name
    if array.dtype != tensor.dtype or tuple(array.shape) != tensor.shape:
        raise WireError(
            f'expected "{name}" as {tensor.dtype}{list(tensor.shape)}, '
            f"got {array.dtype}{list(array.shape)}"
        )
    head, dtype, fortran = _head_of(tensor.dtype, tensor.shape), np.dtype(tensor.dtype), False
    start = len(head)
    if not array.data.startswith(head):  # another valid header, or an invalid one
        start, fortran = _read_head(array.data, tensor)
    if len(array.data) - start != dtype.itemsize * tensor.size:
        raise WireError(
            f'"{name}" should have {dtype.itemsize * tensor.size} bytes of data, '
            f"it has {len(array.data) - start}"
        )
    values: NDArray[Any] = np.frombuffer(array.data, dtype, tensor.size, start)
    return values.reshape(tensor.shape, order="F" if fortran else "C")


def _array_of(vector: Vector) -> Array:
    """Return the same as Array(vector), with one copy instead of two."""
    head = _head_of(str(vector.dtype), vector.shape)
    data = b"".join((head, np.ascontiguousarray(vector).view(np.uint8).data))
    return Array(dtype=str(vector.dtype), shape=vector.shape, stype=SType.NUMPY, data=data)


class Codec(Protocol):
    """Converts weights and buffers to an ArrayRecord and back."""

    @property
    def layout(self) -> Layout:
        """The model's layout."""

    def pack(self, weights: Vector, buffers: Buffers) -> ArrayRecord:
        """Return the record to send."""

    def unpack(self, record: ArrayRecord) -> tuple[Vector, Buffers]:
        """Return the checked weights [d] and buffers, or raise WireError."""


@dataclass(frozen=True)
class FlatCodec:
    """One flat float32 vector, one float64 array of float buffers, one int64 array of the rest."""

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
        """Return {"weights": [d], "buffers": [...], "counters": [...]}, without empty arrays."""
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
                with np.errstate(over="ignore"):  # the check for finite values follows
                    buffers[tensor.name] = part.reshape(tensor.shape).astype(tensor.dtype)
                start += tensor.size
        return read[WEIGHTS], buffers


@dataclass(frozen=True)
class NamedCodec:
    """The named arrays of a state dict, for ordinary Flower clients."""

    layout: Layout
    order: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord, buffers: tuple[str, ...] | None = None) -> "NamedCodec":
        """Derive the codec from the first model.

        Args:
            record: the first weights, by name.
            buffers: names of arrays that are not trained. The default is BatchNorm's statistics and
                all arrays that are not floats.

        Raises:
            WireError: a trainable array is not float32, or a buffer is missing.
        """
        trained: list[Tensor] = []
        rest: list[Tensor] = []
        if unknown := set(buffers or ()) - record.keys():
            raise WireError(f"the model has no arrays {sorted(unknown)}, which `buffers` names")
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
        """Return the named arrays in the order of the first model."""
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
                f"{what} {name_list(names)}"
                for what, names in (("missing", missing), ("unknown", extra))
                if names
            )
        )  # fmt: skip
    return {name: read_array(record[name], tensor) for name, tensor in expected.items()}


def refuse_non_finite(name: str, values: NDArray[Any], layout: Layout) -> None:
    """Check that the weights, a buffer or a vector of the method is finite.

    Raises:
        WireError: a value is NaN or infinite. The message names the tensors.
    """
    if all_finite(values):
        return
    bad = ~np.isfinite(values)
    where = name
    if name == WEIGHTS:
        hit = [tensor for tensor, span in layout.spans.items() if bad[span].any()]
        where = f"{', '.join(hit[:3])}{' ...' if len(hit) > 3 else ''}"
    raise WireError(f"{int(bad.sum())} value(s) are NaN or infinite in {where}")
