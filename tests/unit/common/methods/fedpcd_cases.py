"""The cases of FedPCD's tests: TOY3, the page's three clients, and one step from (1, 1)."""

from typing import Any

import numpy as np
from numpy.linalg import norm

from common.methods import FedPCD
from common.methods.history import History
from common.types import Cohort, Step, Vector
from server_app.state.server_state import ServerState, next_state
from tests.builders import TOY3, TOY3_EXAMPLES, cohort_of, compass, layout_of_size

LAYOUT = layout_of_size(2)  # FedPCD does not look at it
PAGE = compass(10, 45, 155)
PAGE_MEAN = 0.50727591805519


def move(method: FedPCD, cohort: Cohort, state: ServerState[History] | None = None) -> Any:
    """From (1, 1): the next state and the step, as the server takes it."""
    state = state or ServerState(0, np.ones(2), {}, History())
    return next_state(state, cohort, method, LAYOUT, 1.0)


def bent_point(step: Step[History]) -> Vector:
    """x* [d]: the direction before it was given the mean's length; u_0 when nothing was bent."""
    length = step.report.get("length_before", 1.0)
    point: Vector = step.direction / norm(step.direction) * length
    return point


def toy3(**settings: Any) -> tuple[ServerState[History], Step[History]]:
    state, step = move(FedPCD(**settings), cohort_of(TOY3, TOY3_EXAMPLES))
    return state, step
