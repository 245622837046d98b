"""What a plan's file says, and everything that is wrong with it at once."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as some

from common.errors import ConfigError
from deploy.sweep.axes import crossed
from deploy.sweep.plan import Plan, Variant, read_plan
from deploy.sweep.runs import runs_of

PLAN = """
name = "mine"
about = "a first look"
[base]
rounds = 60
data.name = "fashion-mnist"
[grid]
method = ["fedavg", "fedpcd"]
seed = [1, 2]
"data.alpha" = [0.1, 0.01]
[[variants]]
label = "short"
fedpcd.history = 1
[[variants]]
label = "one seed"
seed = 7
rounds = 50
[quick]
base.rounds = 3
grid.seed = [5]
variants = ["one seed"]
"""
FEW = some.dictionaries(
    some.sampled_from(["seed", "rounds", "clients", "train.lr", "fedpcd.history"]),
    some.lists(some.integers(1, 4), min_size=1, max_size=3),
    max_size=4,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def flats(plan: Plan) -> list[dict[str, Any]]:
    return [dict(point.flat) for point in plan.points()]


def test_variants_are_crossed_with_the_grid_but_for_the_keys_that_they_set(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, PLAN))
    points = list(plan.points())
    assert len(points) == 2 * 2 * 2 + 2 * 2
    assert {p.flat["seed"] for p in points if p.variant.label == "one seed"} == {7}
    assert {p.flat["rounds"] for p in points if p.variant.label == "short"} == {60}
    assert {p.flat["rounds"] for p in points if p.variant.label == "one seed"} == {50}
    assert [p.flat["data.alpha"] for p in points[:4]] == [0.1, 0.01, 0.1, 0.01]  # the last, fastest
    assert [p.flat["method"] for p in points[:8]] == ["fedavg"] * 4 + ["fedpcd"] * 4


@given(FEW, some.lists(some.dictionaries(some.just("seed"), some.just(9)), max_size=2))
def test_every_combination_is_there_once(grid: dict[str, list[int]], own: list[Any]) -> None:
    variants = tuple(Variant(str(index), settings) for index, settings in enumerate(own))
    plan = Plan(
        "x", grid={key: sorted(set(values)) for key, values in grid.items()}, variants=variants
    )
    expected = 0
    for settings in own or [{}]:
        number = 1
        for key, values in plan.grid.items():
            number *= 1 if key in settings else len(values)
        expected += number
    points = [(p.variant.label, tuple(sorted(p.flat.items()))) for p in plan.points()]
    assert len(points) == len(set(points)) == expected


def test_quick_takes_the_place_of_what_stands_above(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, PLAN), quick=True)
    assert plan.name == "mine-quick"
    assert [one.label for one in plan.variants] == ["one seed"]
    assert {f["rounds"] for f in flats(plan)} == {3}  # the variant's own 50 too
    assert {f["seed"] for f in flats(plan)} == {5}
    assert {f["data.alpha"] for f in flats(plan)} == {0.1, 0.01}


def test_quick_may_bring_variants_of_its_own(tmp_path: Path) -> None:
    text = PLAN.partition("[quick]")[0] + '[[quick.variants]]\nlabel = "new"\nseed = 3\n'
    plan = read_plan(write(tmp_path, text), quick=True)
    assert {(p.variant.label, p.flat["seed"]) for p in plan.points()} == {("new", 3)}


def test_set_wins_over_everything(tmp_path: Path) -> None:
    path = write(tmp_path, PLAN)
    for quick in (False, True):
        plan = read_plan(path, quick=quick, pairs=["seed=4", "rounds=2", "data.alpha=1"])
        told = {(f["seed"], f["rounds"], f["data.alpha"]) for f in flats(plan)}
        assert told == {(4, 2, 1)}


@pytest.mark.parametrize("quick", [False, True])
def test_a_plan_that_was_kept_is_the_same_plan(quick: bool, tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, PLAN), quick=quick, pairs=["clients=9"])
    kept = {**plan.to_tables(), "runs": {"fedavg-seed1": "short"}}
    again = read_plan(write(tmp_path, tomli_w.dumps(kept)))
    assert flats(again) == flats(plan)
    assert (again.name, again.about) == (plan.name, plan.about)


def test_everything_that_is_wrong_is_told_at_once_with_the_file(tmp_path: Path) -> None:
    text = """
        name = "a/b"
        colour = 1
        [base]
        clients = 0
        out = "x"
        seed = 1
        [grid]
        seed = [1]
        rounds = 3
        method = ["fedavg", "fedpcb"]
        [[variants]]
        fedpcd.taw = 1
        [[variants]]
        label = "twice"
        [[variants]]
        label = "twice"
        [quick]
        bass.rounds = 1
        variants = ["thrice"]
    """
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        runs_of(read_plan(path))
    said = str(caught.value)
    for part in (
        f"the plan {path} cannot be used",
        "the name of a folder, not 'a/b'",
        'a plan has no "colour"',
        "out: a sweep chooses that itself",
        "seed stands in both base and grid",
        "grid.rounds must be a list",
        "number 1: label must be a text, not None",
        'the label "twice" is there twice',
        '[quick] has no "bass" (did you mean "base"?)',
        'no variant is labelled "thrice"',
        "clients must be in [1, 100000], not 0",
        'no key "fedpcd.taw" (did you mean "fedpcd.tau"?)',
        "not 'fedpcb' (did you mean \"fedpcd\"?): ",
    ):
        assert part in said


def test_a_problem_names_the_first_combination_that_has_it(tmp_path: Path) -> None:
    path = write(tmp_path, '[grid]\nseed = [1, 2]\nmethod = ["fedavg", "nothing"]\n')
    with pytest.raises(ConfigError, match="seed=1, method=nothing, and 1 more"):
        runs_of(read_plan(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("base = 3", "base must be a table of settings, not 3"),
        ("variants = 3", r"variants must be tables, \[\[variants\]\], not 3"),
        ("[grid]\nseed = []", "grid.seed must be a list with at least one value"),
        ("name = 3", "the name of a folder, not 3"),
        ("about = 3", "about must be a text"),
        ("[quick]\nvariants = 3", "quick.variants must be tables"),
        ("x = = 1", "is not a TOML file"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        runs_of(read_plan(write(tmp_path, text)))


def test_quick_must_be_there_to_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no \[quick\]"):
        runs_of(read_plan(write(tmp_path, "[base]\nrounds = 1"), quick=True))


class TestTyped:
    """Plans from what was typed."""

    def test_values_are_read_as_numbers_and_texts(self) -> None:
        plan = crossed("x", {"rounds": 3, "name": "n"}, ["seed=1,2", 'model=["mlp", "cnn"]'])
        assert flats(plan) == [
            {"rounds": 3, "seed": seed, "model": model}
            for seed in (1, 2)
            for model in ("mlp", "cnn")
        ]
        [texts] = crossed("x", {}, ["fedpvr.block=last:1,*"]).grid.values()
        assert texts == ["last:1", "*"]

    def test_what_is_varied_is_no_longer_fixed(self) -> None:
        assert flats(crossed("x", {"seed": 9}, ["seed=1"])) == [{"seed": 1}]

    @pytest.mark.parametrize("text", ["seed=", "seed", "seed=,", "seed=[]"])
    def test_no_values_are_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="VALUE,VALUE"):
            crossed("x", {}, [text])
