"""A round is a pure step from state to state; buffers are averaged beside it."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.errors import AggregationError
from common.layout import Tensor
from common.methods import FedAvg, Scaffold
from common.types import ClientUpdate, Cohort
from common.wire.arrays import Codec, FlatCodec, NamedCodec
from server_app.state.server_state import ServerState, average_buffer, next_state
from tests.builders import assert_same, cohort_of, layout_of_size

MEAN, VAR, COUNT = "n.running_mean", "n.running_var", "n.num_batches_tracked"
TENSORS = (Tensor(MEAN, (2,)), Tensor(VAR, (2,)), Tensor(COUNT, (), "int64"))


def statistics(mean: float, var: float, count: int) -> dict[str, Any]:
    return {
        MEAN: np.full(2, mean, np.float32),
        VAR: np.full(2, var, np.float32),
        COUNT: np.array(count),
    }


def two_clients() -> Cohort:
    updates = (
        ClientUpdate("a", 10, 1, 0.1, np.ones(4, np.float32), statistics(0, 1, 7)),
        ClientUpdate("b", 30, 1, 0.1, np.ones(4, np.float32), statistics(10, 3, 8)),
    )
    return Cohort(1, 0.1, 2, updates)


# A public report of this bug: https://github.com/flwrlabs/flower/issues/4344
@pytest.mark.parametrize("named", [False, True])
def test_batch_norm_statistics_are_averaged_and_counters_are_not(named: bool) -> None:
    """0 and 10, 1 and 3, 7 and 8 with weights 1:3, there and back over either wire format."""
    layout = layout_of_size(4, TENSORS)
    names = (*layout.spans, MEAN, VAR, COUNT)
    codec: Codec = NamedCodec(layout, names) if named else FlatCodec(layout)
    start = np.zeros(4, np.float32)
    state = ServerState.first(layout, start, statistics(0, 1, 0), FedAvg())
    for number in range(1, 6):
        cohort = two_clients()
        state, _ = next_state(
            state,
            Cohort(number, 0.1, 2, cohort.updates),
            FedAvg(),
            layout_of_size(1),
            server_lr=1.0,
        )
        weights, buffers = codec.unpack(codec.pack(state.weights, state.buffers))
        assert_same(dict(buffers), statistics(7.5, 2.5, 8))
        assert buffers[COUNT].shape == ()
        assert_array_equal(weights, np.full(4, -number, np.float32))


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 4], "float32", 3.25),
        ([1, 4], "float64", 3.25),
        ([1, 4], "float16", 3.25),
        ([9, 4], "int64", 9),
        ([0, 1], "bool", 1),
    ],
)
def test_a_buffer_keeps_its_dtype_and_its_shape(
    values: list[float], dtype: str, expected: float
) -> None:
    for shape in ((), (2,), (2, 3)):
        cohort = Cohort(
            1,
            0.1,
            2,
            tuple(
                ClientUpdate(name, size, 1, 0.1, np.ones(1), {"b": np.full(shape, value, dtype)})
                for name, size, value in zip("ab", (1, 3), values, strict=True)
            ),
        )
        assert_same(average_buffer(cohort, "b"), np.full(shape, expected, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_server_learning_rate_is_taken_in_the_updates_own_precision(dtype: Any) -> None:
    rate = 2**0.5
    state = ServerState(4, np.zeros(1, dtype), {}, None)
    after, step = next_state(
        state, cohort_of(np.ones((2, 1), dtype), round=5), FedAvg(), layout_of_size(1), rate
    )
    assert after.round == 5
    assert after.weights.dtype == dtype
    assert step.direction == 1
    assert_allclose(after.weights, [-rate], rtol=2 * np.finfo(dtype).eps)


def test_nothing_that_is_not_finite_becomes_the_model() -> None:
    state = ServerState(0, np.zeros(2, np.float32), {}, None)
    cohort = cohort_of(np.full((1, 2), 3e38, np.float32), round=7)
    with pytest.raises(AggregationError, match="round 7 makes weights that are not finite float32"):
        next_state(state, cohort, FedAvg(), layout_of_size(1), 2.0)


def test_the_first_state_is_round_0_with_what_the_method_starts_with() -> None:
    layout = layout_of_size(3)
    state = ServerState.first(layout, np.ones(3), {}, Scaffold())
    assert state.round == 0
    assert_same(state.method, Scaffold().init(layout))
