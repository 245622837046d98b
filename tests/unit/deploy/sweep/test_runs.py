"""The runs of a plan: each once, under a name that says what it is and stays."""

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from common.config import LONGEST_NAME, parse
from common.methods import METHODS
from deploy.sweep.plan import Plan, Variant
from deploy.sweep.runs import runs_of

METHOD_NAMES = some.sampled_from(sorted(METHODS))


def names(plan: Plan) -> list[str]:
    return [run.name for run in runs_of(plan)]


def test_names_say_the_method_what_varies_and_the_seed_last() -> None:
    grid = {"seed": [1, 2], "method": ["fedavg", "fedpcd"], "fedpcd.history": [0, 3]}
    assert names(Plan("x", grid=grid)) == [
        "fedavg-seed1", "fedpcd-history0-seed1", "fedpcd-history3-seed1",
        "fedavg-seed2", "fedpcd-history0-seed2", "fedpcd-history3-seed2",
    ]  # fmt: skip


def test_values_of_every_kind_make_readable_names() -> None:
    grid: dict[str, list[Any]] = {
        "fedpcd.normalise": [True, False],
        "train.lr": [0.05],
        "server.lr": [1],
        "data.name": ["folder:/some/where/Cifar 10"],
        "model": ["cnn"],
    }
    assert names(Plan("x", base={"method": "fedpcd"}, grid=grid)) == [
        "fedpcd-normalise-train-lr0.05-server-lr1-cifar-10-cnn",
        "fedpcd-no-normalise-train-lr0.05-server-lr1-cifar-10-cnn",
    ]
    blocks = Plan("x", base={"method": "fedpvr"}, grid={"fedpvr.block": ["", "*", "last:3"]})
    assert names(blocks) == ["fedpvr-block-none", "fedpvr-block-all", "fedpvr-last-3"]


def test_labels_are_in_the_names_and_kept() -> None:
    variants = (
        Variant("No history!", {"fedpcd.history": 0}),
        Variant("fedavg", {"method": "fedavg"}),
    )
    runs = runs_of(Plan("x", grid={"seed": [1]}, variants=variants))
    assert [(run.name, run.label) for run in runs] == [
        ("fedpcd-no-history-seed1", "No history!"),
        ("fedavg-seed1", "fedavg"),
    ]


def test_what_another_method_is_told_makes_no_other_run() -> None:
    grid = {"method": ["fedavg", "fedpcd"], "fedpcd.tau": [0.01, 0.02]}
    runs = runs_of(Plan("x", grid=grid))
    assert [run.name for run in runs] == ["fedavg", "fedpcd-tau0.01", "fedpcd-tau0.02"]
    assert runs[0].config.to_flat()["fedpcd.tau"] == parse({}).to_flat()["fedpcd.tau"]
    assert runs[2].config.to_flat()["fedpcd.tau"] == 0.02


def test_the_same_settings_twice_make_one_run() -> None:
    twice = (Variant("a", {"rounds": 3}), Variant("b", {}))
    runs = runs_of(Plan("x", base={"rounds": 3}, grid={"seed": [1, 1]}, variants=twice))
    assert [(run.name, run.label) for run in runs] == [("fedpcd-a-seed1", "a")]


def test_names_that_would_be_the_same_end_with_a_digest() -> None:
    variants = (Variant("a b", {"rounds": 3}), Variant("a-b", {"rounds": 4}))
    first, second = names(Plan("x", variants=variants))
    assert first == "fedpcd-a-b"
    assert re.fullmatch("fedpcd-a-b-[0-9a-f]{8}", second)


def test_a_name_too_long_is_cut_and_ends_with_a_digest() -> None:
    variants = tuple(Variant("long " * 40 + end, {"rounds": len(end)}) for end in ("a", "bc"))
    first, second = names(Plan("x", variants=variants))
    assert first != second
    assert {len(first), len(second)} == {LONGEST_NAME}
    assert re.fullmatch("[a-z0-9-]+-[0-9a-f]{8}", first)


@settings(max_examples=15, deadline=None)
@given(
    some.lists(METHOD_NAMES, min_size=1, max_size=3, unique=True),
    some.lists(some.floats(1e-6, 1.0), min_size=1, max_size=3, unique=True),
    some.lists(some.text(min_size=1, max_size=120).filter(str.strip), max_size=2, unique=True),
)
def test_names_are_unique_safe_short_and_stable(
    methods: list[str], rates: list[float], labels: list[str]
) -> None:
    variants = tuple(Variant(label, {"rounds": 2 + n}) for n, label in enumerate(labels))
    grid = {"method": methods, "train.lr": rates}
    found = names(Plan("x", grid=grid, variants=variants))
    assert len(set(found)) == len(found) == len(methods) * len(rates) * max(1, len(labels))
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,99}", name) for name in found)
    assert names(Plan("x", grid=grid, variants=variants)) == found
    assert all(parse({"name": name}) for name in found)


def test_more_values_leave_the_names_as_they_were() -> None:
    small = Plan("x", grid={"method": ["fedpcd"], "seed": [1]})
    large = Plan("x", grid={"method": ["fedavg", "fedpcd"], "seed": [2, 1, 3]})
    assert set(names(small)) < set(names(large))
