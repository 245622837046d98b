"""Diagnostics are a free table: what has the right shape is shown, the rest is passed over."""

from dataclasses import replace
from typing import Any

import pytest

from deploy.report.diagnostic_values import diagnosed, number_in, numbers_in
from deploy.report.figures.layers import drift_by_layer, drift_over_rounds, matrices, similarity
from deploy.report.figures.step_effects import cosines, memory
from deploy.report.figures.svg import svg_text
from deploy.report.html import diagnostic_tables
from deploy.report.run_data import RunData
from deploy.report.run_groups import group_runs
from tests.unit.deploy.report.test_figures import diagnosed as everything

DRAWN = (drift_by_layer, drift_over_rounds, similarity, matrices, cosines, memory)
CLIENTS = ["0", "1"]
ODD: list[dict[str, Any]] = [
    {"drift": "x"},
    {"drift": {"x": 1}},
    {"drift": {"layers": {"a": 0.5}}},
    {"drift": {"whole": 0.5}},
    {"drift": {"whole": "x", "layers": {"a": None, "b": "x", "c": 10**400}}},
    {"drift": {"whole": -1, "layers": {"a": -1}}},
    {"drift": {"whole": 0.5, "layers": {"a": 0.5}}, "clients": 5},
    {"cosine": [1]},
    {"cosine": {"0": "x", "1": None}},
    {"cka": {"a": 1}},
    {"cka": {"layers": {}}},
    {"cka": {"layers": {"a": 5}}},
    {"cka": {"layers": {"a": {"mean": None, "matrix": [[None]]}}}},
    {"cka": {"layers": {"a": {"mean": -3, "matrix": [[-3]]}}}},
    {"cka": {"layers": {"a": {"mean": 1.0, "matrix": [[1.0, 2.0], [3.0]]}}}},
    {"cka": {"layers": {"a": {"mean": "x", "matrix": "x"}}}},
    {"theorem": {"a": 1}},
    {"theorem": {"applies": False}},
    {"theorem": {"applies": False, "why_not": [None, 5]}},
    {"occupancy": {"held": None}},
]


@pytest.mark.parametrize("found", ODD)
@pytest.mark.parametrize("alone", [True, False])
def test_no_shape_stops_a_figure_or_a_remark(found: dict[str, Any], alone: bool) -> None:
    records = tuple(everything(number, CLIENTS) for number in (1, 2))
    last = records[1]
    told = found if alone else {**last.diagnostics, **found}
    (study,) = group_runs([RunData("x", (records[0], replace(last, diagnostics=told)))])
    for figure in (draw(study) for draw in DRAWN):
        assert figure is None or svg_text(figure)
    diagnostic_tables.drift_and_theorem(study)


def test_what_is_sound_beside_what_is_odd_is_still_there() -> None:
    record = everything(1, CLIENTS)
    odd = replace(record, diagnostics={**record.diagnostics, "drift": {"layers": {"a": 0.5}}})
    run = RunData("x", (odd,))
    assert [number for number, _ in diagnosed(run, "drift")] == [1]
    assert numbers_in(odd.diagnostics, "drift", "layers") == {"a": 0.5}
    assert drift_by_layer(group_runs([run])[0]) is not None


@pytest.mark.parametrize("value", ["x", None, [1], {"a": 1}, 10**400, float("nan"), float("inf")])
def test_only_finite_numbers_are_numbers(value: object) -> None:
    assert number_in({"a": {"b": value}}, "a", "b") is None
    assert number_in({"a": value}, "a", "c") is None
