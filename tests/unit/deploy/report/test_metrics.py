"""What tables and figures are made of, on families small enough to check by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from common.config import parse
from common.errors import ConfigError
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.records import RoundRecord
from deploy.config_input import read_targets
from deploy.report import metrics
from deploy.report.figures.canvas import percent
from deploy.report.html.overview import warnings
from deploy.report.run_data import RunData
from deploy.report.run_groups import Study, group_runs

Points = Mapping[int, Sequence[int]]  # by round, the right answers of each client, of 100


def run(points: Points, **flat: Any) -> RunData:
    def evaluation(correct: Sequence[int]) -> Evaluation:
        scores = {f"c{k}": ClientScore(100, right, None) for k, right in enumerate(correct)}
        return Evaluation.of(scores, {})

    records = tuple(
        RoundRecord(number, 0.1, [], [], evaluation=evaluation(correct))
        for number, correct in points.items()
    )
    settings = {key.replace("__", ".").replace("_", "-"): value for key, value in flat.items()}
    return RunData("x", records, parse({"rounds": 40, **settings}).to_flat())


def study(*runs: RunData, targets: Mapping[str, float] | None = None) -> Study:
    (found,) = group_runs(runs, targets)
    return found


SLOW = {10: (10, 30), 20: (30, 50), 40: (50, 70)}  # means .2 .4 .6
FAST = {10: (50, 70), 20: (60, 80), 40: (70, 90)}  # means .6 .7 .8
FLAT = {10: (10, 10), 20: (10, 10), 40: (10, 10)}


def reached(found: Study) -> dict[str, tuple[int | None, int | None, str]]:
    return {
        metrics.name_of(family): (value.round, value.base, value.speedup_text)
        for family, value in metrics.reached(found)
    }


def test_without_a_target_it_is_where_the_reference_ends_and_its_rounds_count() -> None:
    found = study(run(SLOW, method="fedavg"), run(FAST, method="fedpcd"), run(FLAT, method="afl"))
    assert reached(found) == {
        "fedavg": (40, 40, "1.0x"),
        "fedpcd": (10, 40, "4.0x"),
        "afl": (None, 40, ""),
    }
    assert metrics.goal(found) == "60.0 %, the final accuracy of fedavg"


def test_with_a_target_both_are_counted_to_it() -> None:
    runs = (run(SLOW, method="fedavg"), run(FAST, method="fedpcd"))
    assert reached(study(*runs, targets={"": 0.4})) == {
        "fedavg": (20, 20, "1.0x"),
        "fedpcd": (10, 20, "2.0x"),
    }


def test_where_the_reference_never_gets_there_the_speed_up_is_a_bound() -> None:
    runs = (run(SLOW, method="fedavg"), run(FAST, method="fedpcd"))
    found = study(*runs, targets={"": 0.65, "cifar10": 0.1})
    assert reached(found) == {"fedavg": (None, None, ""), "fedpcd": (20, None, "> 2.0x")}
    assert metrics.goal(found) == "65.0 %"


def test_a_target_is_of_its_data_set() -> None:
    runs = [run(SLOW, data__name=name) for name in ("cifar10", "folder:/data/mine", "digits")]
    found = group_runs(runs, {"cifar10": 0.66, "mine": 0.5})
    assert [each.target for each in found] == [0.66, 0.5, None]


def test_targets_are_read_and_odd_ones_refused() -> None:
    assert read_targets(["cifar10=0.66", "0.5"]) == {"cifar10": 0.66, "": 0.5}
    for text in ("66", "0", "x", "a=b=", "nan", "-1", "cifar10=66 %"):
        with pytest.raises(ConfigError, match=r"--target takes an accuracy"):
            read_targets([text])


def test_a_family_ends_at_the_last_round_that_all_its_seeds_evaluated() -> None:
    late = {10: (20, 40), 20: (40, 60)}
    (family,) = study(run(SLOW, seed=1), run(late, seed=2)).families
    assert metrics.last_round(family) == 20
    end = metrics.final(family)
    assert end is not None
    assert (end.mean, end.low, end.high, end.seeds) == (
        pytest.approx(0.45), pytest.approx(0.4), pytest.approx(0.5), 2,
    )  # fmt: skip
    worst = metrics.final(family, metrics.worst10)
    assert worst is not None
    assert worst.mean == pytest.approx(0.35)
    assert metrics.client_accuracies(family) == {
        1: {"c0": 0.3, "c1": 0.5},
        2: {"c0": 0.4, "c1": 0.6},
    }


def test_a_seed_without_an_evaluation_does_not_count() -> None:
    (family,) = study(run(SLOW, seed=1), run({}, seed=2)).families
    end = metrics.final(family)
    assert end is not None
    assert (end.mean, end.seeds) == (pytest.approx(0.6), 1)


def test_the_reference_is_fedavg_as_it_is_and_a_lucky_variant_stands_for_nobody() -> None:
    found = study(
        run(FLAT, method="fedpcd"),
        run(FAST, method="fedpcd", fedpcd__tau=0.9),
        run(FAST, method="fedavg", train__lr=0.5),
        run(SLOW, method="fedavg"),
    )
    base = metrics.reference(found)
    assert base is not None
    assert metrics.name_of(base) == "fedavg"
    names = [metrics.name_of(family) for family in metrics.leaders(found)]
    assert names == ["fedpcd", "fedavg"]


def test_differences_are_of_the_same_clients_at_the_end() -> None:
    found = study(run(SLOW, method="fedavg"), run(FAST, method="fedpcd"))
    ((family, difference),) = metrics.differences(found, "mean")
    assert metrics.name_of(family) == "fedpcd"
    assert (difference.value, difference.low, difference.high) == (
        pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.2),
    )  # fmt: skip


def test_how_long_a_run_was_is_no_setting_of_its_method() -> None:
    found = study(
        run(SLOW, rounds=40, fedpcd__tau=0.1),
        run(FAST, rounds=41, fedpcd__tau=0.1),
        run(FAST, rounds=40, fedpcd__tau=0.2),
    )
    assert list(metrics.varied_alone(found)) == ["fedpcd.tau"]


def test_runs_of_a_quick_sweep_are_named_as_such(tmp_path: Path) -> None:
    def told(folder: str) -> bool:
        path = tmp_path / folder / "fedpcd-seed1"
        return any("quick" in text for text in warnings(study(replace(run(SLOW), path=path))))

    assert told("fedpcd-ablation-quick")
    assert not told("fedpcd-ablation")


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.28), (0.8, 1.0), (0.0, 1.0), (0.61, 0.64)])
def test_a_tick_says_where_it_is(low: float, high: float) -> None:
    figure = Figure()
    axes = figure.add_subplot()
    axes.set_ylim(low, high)
    percent(axes.yaxis)
    figure.canvas.draw()
    ticks = {label.get_text(): place for label, place in zip(
        axes.get_yticklabels(), axes.get_yticks(), strict=True
    )}  # fmt: skip
    for text, place in ticks.items():
        assert float(text.removesuffix(" %")) / 100 == pytest.approx(place, abs=1e-9)
    assert len(ticks) > 3
