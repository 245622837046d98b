"""Hostile or damaged bytes are refused with a reason, cost nothing, and are never run."""

import io
import os
import pickle
import resource
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.testing import assert_array_equal

from common.errors import WireError
from common.layout import Tensor
from common.rng import stream
from common.wire.arrays import WEIGHTS, FlatCodec, read_array
from common.wire.content import ARRAYS, METRICS
from common.wire.messages import read_train_reply
from common.wire.reply_metrics import EXAMPLES
from tests.builders import assert_same, layout_of_size

THREE = Tensor("w", (3,))
MARKER = "marker"


class Bomb:
    """What a pickle does when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, (MARKER,)


def npy(array: Any, *, pickles: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickles)
    return stream.getvalue()


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, w=np.ones(3, np.float32))
    return stream.getvalue()


def with_header(text: str, data: bytes = b"\0" * 12, version: bytes = b"\1\0") -> bytes:
    header = text.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def header_of(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def lying(data: bytes, tensor: Tensor = THREE) -> Array:
    """An array that says it is what is expected, whatever its bytes are."""
    return Array(dtype=tensor.dtype, shape=tensor.shape, stype="numpy.ndarray", data=data)


PAIR = np.dtype([("a", "<f4"), ("b", "<f4")])
HUGE = Tensor("w", (2**33,))
HOSTILE = {
    "objects": lying(npy(np.array([Bomb(), 1, 2], object), pickles=True)),
    "honest objects": Array(
        "object", (3,), "numpy.ndarray", npy(np.array([Bomb(), 1, 2], object), pickles=True)
    ),
    "a pickle": lying(pickle.dumps(Bomb())),
    "an archive": lying(npz()),
    "another shape": lying(npy(np.ones(4, np.float32))),
    "another rank": lying(npy(np.ones((3, 1), np.float32))),
    "another dtype": lying(npy(np.ones(3, np.float64))),
    "the other byte order": lying(npy(np.ones(3, ">f4"))),
    "fields": lying(npy(np.ones(3, PAIR))),
    "honest fields": Array(str(PAIR), (3,), "numpy.ndarray", npy(np.ones(3, PAIR))),
    "nothing": lying(b""),
    "half a header": lying(npy(np.ones(3, np.float32))[:40]),
    "half the data": lying(npy(np.ones(3, np.float32))[:-4]),
    "more data": lying(npy(np.ones(3, np.float32)) + b"\0"),
    "a later version": lying(with_header(header_of("(3,)"), version=b"\2\0")),
    "an open bracket": lying(with_header("{'descr': ((")),
    "a deep header": lying(with_header("-" * 9000 + "1")),
    "a list as a key": lying(with_header("{[]: 1}")),
    "an empty descr": lying(with_header(header_of("(3,)", "()"))),
    "numbers as keys": lying(with_header("{1: 2, 'a': 3}")),
    "code": lying(with_header(f"__import__('os').mkdir('{MARKER}')")),
    "a huge header": lying(with_header(header_of("(8589934592,)"), b"\0" * 8)),
}


# A public report of this bug: https://github.com/flwrlabs/flower/pull/882
@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bytes_are_refused_with_a_reason_and_never_run(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WireError, match='"w"'):
        read_array(HOSTILE[what], THREE)
    content = RecordDict({ARRAYS: ArrayRecord({WEIGHTS: HOSTILE[what]}),
                          METRICS: MetricRecord({EXAMPLES: 1})})  # fmt: skip
    with pytest.raises(WireError, match='"weights"'):
        read_train_reply(content, FlatCodec(layout_of_size(3)), 1)
    assert not Path(MARKER).exists()


def test_a_header_that_claims_2_to_the_33_numbers_costs_nothing() -> None:
    """Even where a model of that size is expected: the bytes are counted first."""
    array = lying(with_header(header_of("(8589934592,)"), b"\0" * 8), HUGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    with pytest.raises(WireError, match="should have 34359738368 bytes of data, it has 8"):
        read_array(array, HUGE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "float16", "uint8"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 3, 4)])
def test_an_array_is_read_as_it_was_sent(dtype: str, shape: tuple[int, ...]) -> None:
    sent = stream(0, "array").integers(0, 2, shape).astype(dtype)
    read = read_array(Array(sent), Tensor("x", shape, dtype))
    assert_same(read, np.asarray(sent))
    assert not read.flags.writeable


def test_an_array_in_fortran_order_is_read_correctly() -> None:
    """numpy saves a transposed matrix so; some clients' weights are stored that way."""
    sent = np.arange(6, dtype=np.float32).reshape(3, 2).T
    assert b"'fortran_order': True" in Array(sent).data
    assert_array_equal(read_array(Array(sent), Tensor("x", (2, 3))), sent)
