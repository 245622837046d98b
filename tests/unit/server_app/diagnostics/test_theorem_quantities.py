"""What FedPCD's theorem says of a round, from the updates and what clients told beside them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from common.config import RunConfig, parse
from common.diagnostics import cosines_with
from common.methods import FedMGDA, FedPCD
from common.models import Dropout, FlatModel
from common.types import Cohort, Step
from common.wire.reply_metrics import GRADIENT, GRADIENT_ERROR, SMOOTHNESS
from server_app.diagnostics.theorem_quantities import theorem_of
from server_app.state.server_state import ServerState
from tests.builders import LR, cohort_of, compass

PAGE = compass(10, 45, 155)
EXACT_STEPS = {"method": "fedpcd", "fedpcd.history": 0, "fedpcd.tau": 0.25, "train.lr": LR}
BENT = np.array([0.095815188370763, 0.49814486519106])  # the page's step for tau = 0.25


def config_of(**settings: Any) -> RunConfig:
    return parse({**EXACT_STEPS, "clients": 3, **settings})


def page(told: dict[str, float] | None = None, **changes: Any) -> Cohort:
    """The page's three clients, who took one exact step, each telling the same."""
    metrics = {GRADIENT: 10.0, GRADIENT_ERROR: 0.0, SMOOTHNESS: 0.5} if told is None else told
    cohort = cohort_of(PAGE, clients=3)
    updates = [replace(update, metrics=metrics, **changes) for update in cohort.updates]
    return replace(cohort, updates=tuple(updates))


def of_step(config: RunConfig, model: FlatModel, before: Any, cohort: Cohort, step: Any) -> Any:
    cosines = cosines_with(step.direction, [update.delta for update in cohort.updates])
    return theorem_of(config, model, before, cohort, step, cosines)


def judged(
    cohort: Cohort, config: RunConfig | None = None, model: FlatModel | None = None
) -> dict[str, Any]:
    config, model = config or config_of(), model or FlatModel(nn.Linear(2, 1, bias=False))
    before = ServerState.first(model.layout, np.zeros(2, np.float32), {}, config.chosen)
    return of_step(config, model, before, cohort, Step(BENT, before.method))


def test_the_published_example_with_exact_steps_is_covered() -> None:
    told = judged(page())
    assert told == {
        "gamma": pytest.approx(0.24382601515855, abs=1e-9),
        "r": 0.0,
        "r_bound": 0.0,
        "gamma_eff": pytest.approx(0.24382601515855, abs=1e-9),
        "largest_r": pytest.approx(0.24382601515855 / 1.24382601515855, abs=1e-9),
        "steps": 1,
        "step_times_smoothness_limit": pytest.approx(0.24382601515855, abs=1e-9),
        "smoothness_seen": 0.5,
        "step": LR,
        "applies": True,
        "why_not": [],
    }


def test_a_server_step_or_a_smoothness_beyond_the_bound_is_objected_to() -> None:
    (why,) = judged(page(), config_of(**{"server.lr": 10.0}))["why_not"]
    assert "the step 1 times the smoothness seen, 0.5, is 0.5; at most 0.244" in why
    told = judged(page({GRADIENT: 10.0, GRADIENT_ERROR: 0.0, SMOOTHNESS: 3.0}))
    assert [why[:12] for why in told["why_not"]] == ["the step 0.1"]


def test_the_largest_relative_error_counts() -> None:
    told = judged(page({GRADIENT: 10.0, GRADIENT_ERROR: 4.0, SMOOTHNESS: 0.1}))
    assert told["r"] == pytest.approx(0.4)
    assert told["step_times_smoothness_limit"] is None
    assert not told["applies"]


def test_a_client_that_tells_nothing_leaves_r_unknown() -> None:
    cohort = page()
    silent = replace(cohort.updates[0], metrics={})
    told = judged(replace(cohort, updates=(silent, *cohort.updates[1:])))
    assert told["r"] is None
    assert [why for why in told["why_not"] if "r is not known" in why]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train.momentum": 0.9}, "clients use momentum (0.9)"),
        ({"train.weight-decay": 0.01}, "clients use weight decay (0.01)"),
        ({"train.augment": True}, "clients train on augmented pictures"),
        ({"train.drop-last": True}, "clients leave out the last, incomplete batch"),
        ({"method": "fedprox"}, "the method adds to the clients' gradients"),
        ({"fedpcd.history": 4}, "the history is 4 rounds; the theorem needs 0"),
    ],
)
def test_what_makes_local_steps_inexact_is_named(settings: dict[str, Any], said: str) -> None:
    assert judged(page(), config_of(**settings))["why_not"] == [said]


def test_mini_batches_and_unequal_numbers_of_steps_are_named() -> None:
    assert judged(page(steps=4))["why_not"] == ["clients train on mini-batches of 32"]
    assert judged(page(steps=4), config_of(**{"train.epochs": 4}))["why_not"] == []
    cohort = page()
    updates = [replace(update, steps=k + 1) for k, update in enumerate(cohort.updates)]
    told = judged(replace(cohort, updates=tuple(updates)), config_of(**{"train.epochs": 3}))
    assert told["steps"] is None
    assert "from 1 to 3 steps" in told["why_not"][0]


def test_a_model_with_dropout_or_batch_statistics_is_named() -> None:
    dropout = FlatModel(nn.Sequential(Dropout(0.1), nn.Linear(2, 1, bias=False)))
    assert judged(page(), model=dropout)["why_not"] == ["the model has dropout"]
    norm = FlatModel(nn.BatchNorm1d(1))
    assert judged(page(), model=norm)["why_not"] == [
        "the model normalises by the statistics of a batch"
    ]


def test_a_step_of_another_length_and_missing_clients_are_named() -> None:
    cohort, config, model = page(), config_of(), FlatModel(nn.Linear(2, 1, bias=False))
    before = ServerState.first(model.layout, np.zeros(2, np.float32), {}, config.chosen)
    told = of_step(config, model, before, cohort, Step(2 * BENT, before.method))
    assert told["why_not"] == ["the direction is not as long as the mean of the updates"]
    few = replace(cohort, clients=12)
    assert judged(few)["why_not"] == ["3 of 12 clients took part; the theorem needs all"]


def test_methods_that_remember_nobody_have_no_history_rounds() -> None:
    assert FedPCD(history=3).history_rounds == 3
    assert FedMGDA().history_rounds is None
