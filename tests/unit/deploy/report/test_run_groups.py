"""Runs that may be compared stand together; runs that differ in the seed alone are one family."""

import json
from dataclasses import replace
from datetime import date
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

from common.config import parse
from common.errors import ConfigError
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.conformal_results import CONFORMAL
from common.runs.records import Recorder, RoundRecord
from deploy.report.figures.setting_effects import ablations, values
from deploy.report.figures.svg import svg_text
from deploy.report.html.overview import warnings
from deploy.report.html.page import render
from deploy.report.report_json import numbers_of
from deploy.report.run_data import RunData, discover
from deploy.report.run_groups import Study, group_runs
from server_app.run_dir.run_dir import RunDir


def run(rounds: int = 1, personal: bool = False, **changes: Any) -> RunData:
    """A run with the config {"fedpcd__tau": .1} stands for {"fedpcd.tau": .1}."""
    flat = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    own = Evaluation.of({"0": ClientScore(10, 9, None)}, {}) if personal else None
    evaluation = Evaluation({"0": ClientScore(10, 5, None)}, {}, None)
    evaluation = Evaluation.of(evaluation.clients, {})
    evaluation = Evaluation(evaluation.clients, {}, evaluation.fairness, own)
    records = [RoundRecord(n, 0.1, [], [], evaluation=evaluation) for n in range(1, rounds + 1)]
    return RunData("some name", tuple(records), parse(flat).to_flat())


def only(runs: list[RunData]) -> Study:
    (study,) = group_runs(runs)
    return study


def labels(study: Study) -> list[str]:
    return [family.label for family in study.families]


def test_seeds_of_a_method_are_one_family_in_their_order() -> None:
    study = only([run(method="fedavg", seed=seed) for seed in (10, 2, 1)])
    assert labels(study) == ["fedavg"]
    assert list(study.families[0].by_seed) == [1, 2, 10]


def test_families_are_told_apart_by_what_differs_within_their_method() -> None:
    runs = [
        run(method="fedavg", train__lr=0.1),
        run(method="fedpcd", train__lr=0.2, fedpcd__tau=0.0),
        run(method="fedpcd", train__lr=0.2, fedpcd__tau=0.05, fedpcd__primary=False),
    ]
    assert labels(only(runs)) == [
        "fedavg",
        "fedpcd tau=0 primary=true",
        "fedpcd tau=0.05 primary=false",
    ]


def test_settings_of_other_methods_and_places_tell_nothing() -> None:
    runs = [
        run(method="fedavg", fedpcd__tau=0.5, name="a", out="x", server__patience=1.0),
        run(method="fedavg", seed=2, data__root="/d", eval_every=1, conformal__bins=50),
    ]
    assert labels(only(runs)) == ["fedavg"]


def test_tasks_are_studies_of_their_own_named_by_what_differs() -> None:
    runs = [run(data__alpha=alpha, participation=0.5) for alpha in (0.1, 0.01, 0.1)]
    assert [study.title for study in group_runs(runs)] == ["data.alpha=0.1", "data.alpha=0.01"]
    assert group_runs(runs[:1])[0].title == (
        "digits, 20 clients, dirichlet-client alpha 0.1, mlp, 10 clients a round"
    )


def test_the_same_run_twice_counts_once_with_the_longer_records() -> None:
    (family,) = only([run(rounds=3), run(rounds=2)]).families
    assert [each.rounds for each in family.runs] == [3]


def test_own_models_are_a_family_of_their_own_and_no_part_of_a_sweep() -> None:
    study = only([run(method="ditto", ditto__lam=lam, personal=True) for lam in (0.2, 0.1)])
    assert labels(study)[:2] == ["ditto lam=0.2", "ditto lam=0.2, own models"]
    assert [f.label[-3:] for f in study.along("ditto.lam").values()] == ["0.1", "0.2"]


def test_a_sweep_is_the_largest_group_that_differs_in_one_setting() -> None:
    runs = [run(fedpcd__history=h, fedpcd__tau=tau) for h, tau in ((3, 0.1), (10, 0.1), (0, 0.1))]
    runs += [run(fedpcd__history=h, fedpcd__tau=0.5) for h in (0, 1)]
    study = only([*runs, run(method="fedavg")])
    assert list(study.along("fedpcd.history")) == [0, 3, 10]
    assert list(study.along("fedpcd.tau")) == [0.1, 0.5]
    assert study.along("fedpcd.primary") == {}


def test_runs_without_a_config_are_told_apart_by_their_names() -> None:
    records = run().records
    assert labels(only([RunData("a", records), RunData("b", records)])) == ["a", "b"]


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    for place, name in (("x", "b"), ("x", "a"), (".", "y")):
        config = parse({"out": str(tmp_path / place), "name": name, "seed": 7})
        folder = RunDir.open(config)
        Recorder(folder.path / "records.jsonl").append(RoundRecord(1, 0.1, [], []))
    found, _ = discover([tmp_path, tmp_path / "x" / "a"])
    assert [each.label for each in found] == ["a", "b", "y"]
    assert {each.seed for each in found} == {7}


@pytest.mark.parametrize("name", ["nothing here", "empty"])
def test_a_place_without_runs_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"expected the folder of a run"):
        discover([tmp_path / name])


def test_of_two_alike_runs_the_one_that_tells_more_counts_in_either_order(tmp_path: Path) -> None:
    plain = run(rounds=2)
    seldom = replace(plain, records=(replace(plain.records[0], evaluation=None), plain.records[1]))
    last = replace(plain.records[1], diagnostics={"drift": {"whole": 1.0}})
    diagnosed = replace(plain, records=(plain.records[0], last))
    (tmp_path / CONFORMAL).write_text("{}")
    with_sets = replace(diagnosed, path=tmp_path)
    ranked = [seldom, plain, diagnosed, with_sets]
    for less, more in pairwise(ranked):
        for both in ([less, more], [more, less]):
            (family,) = only(both).families
            assert (family.runs[0].records, family.runs[0].path) == (more.records, more.path)


ODD = [[1, [2]], [], {"a": 1}, date(2020, 1, 1), inf, "x", True, None, 0.5]


@pytest.mark.parametrize("value", ODD)
def test_settings_of_any_kind_may_vary(value: Any) -> None:
    runs = [run(method="fedavg"), run(method="fedpcd"), run(method="fedpcd", seed=2)]
    runs += [replace(runs[1], config={**runs[1].config, "fedpcd.tau": value})]
    runs += [replace(runs[1], config={**runs[1].config, "fedpcd.tau": 0.75})]
    study = only(runs)
    assert len(study.along("fedpcd.tau")) == 3
    for draw in (values, ablations):
        figure = draw(study)
        assert figure is None or svg_text(figure)
    json.dumps(numbers_of(runs, {}), allow_nan=False)


def test_a_page_of_odd_settings_is_whole() -> None:
    usual = run(method="fedpcd")
    runs = [replace(usual, config={**usual.config, "fedpcd.tau": value}) for value in ODD]
    assert "cannot be drawn" not in render(runs)


def test_seeds_without_a_common_evaluated_round_are_told_and_not_compared() -> None:
    one, two = run(rounds=2, seed=1), run(rounds=2, seed=2)
    one = replace(one, records=(one.records[0],))
    two = replace(two, records=(two.records[1],))
    said = warnings(only([one, two]))
    assert any("no evaluated round in common" in text for text in said)
    assert not any("Nothing has been evaluated" in text for text in said)


def test_runs_without_a_config_leave_the_titles_of_others() -> None:
    runs = [run(data__alpha=0.1), RunData("x", run().records)]
    (alone,) = group_runs(runs[:1])
    assert [study.title for study in group_runs(runs)] == [alone.title, "settings not known"]
    titles = [study.title for study in group_runs([*runs, run(data__alpha=0.01)])]
    assert titles == ["data.alpha=0.1", "settings not known", "data.alpha=0.01"]
