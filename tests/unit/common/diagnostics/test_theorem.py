"""The numbers of FedPCD's convergence theorem, and which of its premises are named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common.diagnostics import RoundConditions, Terms, error_bound, relative_error, verdict
from tests.builders import LR, QUAD2

GAMMA = 0.24382601515855  # least cosine of the page's example at tau = 0.25
MET = RoundConditions(
    took_part=3,
    clients=3,
    history=0,
    steps=[5, 5, 5],
    inexact=[],
    keeps_length=True,
    step=0.01,
    smoothness=1.0,
)


@pytest.mark.parametrize(
    ("rate", "steps", "expected", "within"),
    [(0.01, 5, 0.020201002, 1e-9), (0.1, 5, 0.22102, 1e-7), (0.05, 10, 0.257789253555, 1e-12),
     (0.7, 1, 0, 0), (0.2, 2, 0.1, 1e-12), (0.3, 2, 0.15, 1e-12), (0.0, 7, 0, 0)],
)  # fmt: skip
def test_what_smoothness_bounds_r_by(
    rate: float, steps: int, expected: float, within: float
) -> None:
    assert error_bound(rate, steps) == pytest.approx(expected, abs=within)


def test_the_bound_of_tiny_steps_does_not_drown_in_rounding_and_of_huge_ones_is_infinite() -> None:
    assert error_bound(1e-14, 3) == pytest.approx(1e-14, rel=1e-9, abs=0)
    assert error_bound(1e4, 1000) == np.inf


def after_two_steps(client: str) -> tuple[Any, Any]:
    """The sum of two gradients of a quadratic on the way from (1, 1), and the first of them."""
    problem, w = QUAD2[client], np.ones(2)
    first = problem.gradient(w)
    return first + problem.gradient(w - LR * first), first


@pytest.mark.parametrize(("client", "r"), [("1", 0.092195444573), ("2", 0.111803398875)])
def test_r_on_quadratics_is_the_published_one_and_below_its_bound(client: str, r: float) -> None:
    total, first = after_two_steps(client)
    error, norm = float(np.linalg.norm(total - 2 * first)), float(np.linalg.norm(first))
    found = relative_error([error], [norm], 2)
    assert found == pytest.approx(r, abs=1e-12)
    assert found <= error_bound(LR * float(QUAD2[client].h.max()), 2) + 1e-12


def test_r_is_the_largest_over_clients_that_have_a_gradient() -> None:
    assert relative_error([0.1, 0.9, 0.0], [1.0, 3.0, 0.0], 2) == pytest.approx(0.15)
    assert relative_error([0.0], [0.0], 2) is None
    assert relative_error([0.1, 0.2], [1.0, 0.0], 2) is None  # moved without a gradient


def test_the_margin_of_the_published_example() -> None:
    alone = Terms(GAMMA, 0.0, 1)
    assert (alone.gamma_eff, alone.limit) == (GAMMA, GAMMA)
    near = Terms(GAMMA, error_bound(0.01, 5), 5)
    assert near.gamma_eff == pytest.approx(0.218699483339, abs=1e-9)
    assert near.limit == pytest.approx(0.042873802890, abs=1e-9)
    far = Terms(GAMMA, error_bound(0.1, 5), 5)
    assert far.gamma_eff == pytest.approx(-0.0310844, abs=1e-7)
    assert far.limit is None


@pytest.mark.parametrize("gamma", [0.05, GAMMA, 1.0])
def test_the_margin_ends_where_it_is_said_to(gamma: float) -> None:
    most = Terms(gamma, 0.0, 1).largest_r
    assert most == gamma / (1 + gamma)
    assert Terms(gamma, most, 1).gamma_eff == pytest.approx(0, abs=1e-15)
    assert Terms(gamma, most - 1e-6, 1).limit is not None
    assert Terms(gamma, most + 1e-6, 1).limit is None


def test_what_is_not_known_makes_nothing_else_up() -> None:
    blind = Terms(GAMMA, None, 5)
    assert (blind.gamma_eff, blind.limit) == (None, None)
    assert Terms(-0.1, 0.0, 5).largest_r is None
    assert Terms(GAMMA, 0.0, None).limit is None
    assert Terms(None, 0.0, 1).gamma_eff is None


def test_a_round_that_meets_every_premise_is_covered() -> None:
    judged = verdict(Terms(0.5, 0.01, 5), MET)
    assert judged.applies
    assert judged.why_not == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"took_part": 2}, "2 of 3 clients took part"),
        ({"history": 10}, "the history is 10 rounds"),
        ({"inexact": ["clients use momentum (0.9)"]}, "clients use momentum (0.9)"),
        ({"steps": [1, 5, 3]}, "from 1 to 5 steps"),
        ({"keeps_length": False}, "not as long as the mean"),
        ({"smoothness": 50.0}, "the step 0.01 times the smoothness seen, 50, is 0.5"),
    ],
)
def test_each_premise_that_is_not_met_is_named(change: dict[str, Any], said: str) -> None:
    judged = verdict(Terms(0.5, 0.01, 5), replace(MET, **change))
    assert not judged.applies
    assert len(judged.why_not) == 1
    assert said in judged.why_not[0]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (Terms(None, 0.0, 5), "no least cosine"),
        (Terms(0.5, None, 5), "r is not known"),
        (Terms(0.5, 0.4, 5), "r is 0.4, and must be below 0.333"),
        (Terms(-0.2, 0.0, 5), "gamma is -0.2, so the step leads away from a client"),
    ],
)
def test_terms_that_void_the_theorem_are_named(terms: Terms, said: str) -> None:
    judged = verdict(terms, MET)
    assert len(judged.why_not) == 1
    assert said in judged.why_not[0]


def test_a_smoothness_nobody_has_seen_speaks_against_nothing() -> None:
    assert verdict(Terms(0.5, 0.0, 5), replace(MET, smoothness=None, history=None)).applies
