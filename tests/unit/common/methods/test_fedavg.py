"""FedAvg is the mean of the clients' models: weighted or plain, as the card's numbers say."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from common.methods import FedAvg
from server_app.state.server_state import ServerState, next_state
from tests.builders import QUAD2, TOY3, TOY3_EXAMPLES, begin, cohort_of, layout_of_size, play

LAYOUT = layout_of_size(2)


@pytest.mark.parametrize(
    ("method", "server_lr", "weights"),
    [
        (FedAvg(), 1.0, (0.91, 0.84)),
        (FedAvg(uniform=True), 1.0, (0.966666666667, 0.833333333333)),
        (FedAvg(), 0.5, (0.955, 0.92)),
    ],
)
def test_toy3(method: FedAvg, server_lr: float, weights: tuple[float, float]) -> None:
    state = ServerState(0, np.ones(2), {}, None)
    after, _ = next_state(state, cohort_of(TOY3, TOY3_EXAMPLES), method, LAYOUT, server_lr)
    assert after.round == 1
    assert_allclose(after.weights, weights, rtol=0, atol=1e-9)


def test_quad2_drifts_to_its_own_fixed_point() -> None:
    method, layout = FedAvg(uniform=True), layout_of_size(2)
    states = play(method, begin(method, layout, (1, 1)), layout, QUAD2, [["1", "2"]] * 500)
    exact = {"rtol": 0, "atol": 1e-9}
    assert_allclose(states[0].weights, (0.84, 1.105), **exact)
    assert_allclose(states[1].weights, (0.736, 1.181125), **exact)
    assert_allclose(states[-1].weights, (0.542857142857, 1.381818181818), **exact)


def test_weights_are_shares_of_the_cohort_not_of_the_federation() -> None:
    few = cohort_of([[1.0], [4.0]], (1, 3), clients=2)
    many = cohort_of([[1.0], [4.0]], (1, 3), clients=1000)
    for cohort in (few, many):
        assert_allclose(FedAvg().aggregate(cohort, None, LAYOUT).direction, [3.25], rtol=1e-15)


# A public report of this bug: https://github.com/osqp/osqp/issues/389
def test_clients_that_all_send_the_same_move_the_model_by_exactly_that() -> None:
    """The weights add up to 1: the step neither shrinks nor grows with the number of clients."""
    for count in (1, 2, 3, 7, 100):
        rows = np.full((count, 50), 0.3, np.float32)
        cohort = cohort_of(rows, range(1, count + 1))
        assert_allclose(FedAvg().aggregate(cohort, None, LAYOUT).direction, rows[0], rtol=1e-6)
