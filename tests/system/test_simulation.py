"""The command on Flower's simulation engine: the same weights as inline, and its report."""

import re
from contextlib import ExitStack
from subprocess import CompletedProcess

import pytest

from common.methods import METHODS
from common.runs.conformal_results import CONFORMAL, read_conformal
from tests.folders import write_pictures
from tests.system.conftest import SMALL, Place, pairs

COMPARED = ("fedavg", "fedpcd", "fedpvr")  # a plain mean, a history, and vectors on the wire
DROPOUT = {
    **SMALL,
    "clients": 5,
    "participation": 0.6,
    "rounds": 3,
    "model": "cnn",
    "data.name": "folder:pictures",
    "train.batch-size": 4,
    "train.lr": 0.05,
    "data.calibration-fraction": 0.3,
}
Shown = CompletedProcess[str]


@pytest.fixture(scope="module")
def shown(shared_place: Place) -> dict[str, Shown]:
    """Run the same comparison on two Ray workers and in one process."""
    write_pictures(shared_place.work / "pictures")
    ways = {
        "ray": ("--engine", "simulation", "--workers", "2"),
        "inline": ("--engine", "inline", "--workers", "2"),
    }
    return {
        name: shared_place.fedkeel("compare", *COMPARED, *pairs(DROPOUT), "--name", name, *way)
        for name, way in ways.items()
    }


@pytest.mark.parametrize("method", COMPARED)
def test_two_ray_workers_and_none_give_the_same_weights(
    method: str, shown: dict[str, Shown], shared_place: Place
) -> None:
    assert [done.returncode for done in shown.values()] == [0, 0], shown
    records = {name: shared_place.records(f"{name}/{method}") for name in shown}
    assert all(record.dropped == {} for found in records.values() for record in found)
    losses = {name: [record.train_loss for record in found] for name, found in records.items()}
    assert losses["ray"] == pytest.approx(losses["inline"], rel=1e-12)
    evaluations = {name: [record.evaluation for record in found] for name, found in records.items()}
    assert evaluations["ray"][-1] is not None
    assert evaluations["ray"][-1].fairness is not None
    assert evaluations["ray"] == evaluations["inline"]
    assert len({shared_place.weights(f"{name}/{method}") for name in shown}) == 1


@pytest.mark.parametrize("method", COMPARED)
def test_prediction_sets_are_the_same_on_every_engine(
    method: str, shown: dict[str, Shown], shared_place: Place
) -> None:
    folders = [shared_place.run_dir(f"{name}/{method}") for name in shown]
    assert len({(folder / CONFORMAL).read_text() for folder in folders}) == 1
    sets = read_conformal(folders[0])
    assert sets is not None
    assert (sets.problem, len(sets.calibration)) == (None, 5)


def test_compared_methods_get_the_same_cohorts(
    shown: dict[str, Shown], shared_place: Place
) -> None:
    for name in shown:
        first, *others = (shared_place.records(f"{name}/{method}") for method in COMPARED)
        for records in others:
            assert [sorted(r.cohort) for r in records] == [sorted(r.cohort) for r in first]
        assert len({tuple(sorted(record.cohort)) for record in first}) > 1


def test_files_named_in_the_summary_exist(shown: dict[str, Shown], shared_place: Place) -> None:
    for name, done in shown.items():
        out = done.stdout
        for method in COMPARED:
            assert method in out
        paths = [line for line in out.splitlines() if line.startswith(str(shared_place.work))]
        assert {path.rpartition("/")[2] for path in paths} >= {"accuracy.png", "summary.json"}
        for path in paths:
            assert shared_place.run_dir(name) in (shared_place.work / path).parents
            assert (shared_place.work / path).stat().st_size > 0


def test_piped_output_is_plain_text(shown: dict[str, Shown]) -> None:
    for done in shown.values():
        assert not re.search(r"\x1b|\r", done.stdout + done.stderr)
        assert done.stderr == ""


def test_no_process_or_file_is_left(shown: dict[str, Shown], shared_place: Place) -> None:
    shared_place.assert_tidy()


@pytest.fixture(scope="module")
def everyone(shared_place: Place) -> dict[str, list[str]]:
    """Run each method on Ray and in one process: digits, three rounds, three of four clients.

    Two Ray runs of half of the methods each go on at the same time: most of the time is waiting.
    One has one worker, the other has two.
    """
    settings = pairs({**SMALL, "rounds": 3, "participation": 0.75, "data.partition": "dirichlet"})
    halves = {"ray-1": list(METHODS)[::2], "ray-2": list(METHODS)[1::2]}
    ways = {
        name: (*names, "--engine", "simulation", "--workers", name[-1])
        for name, names in halves.items()
    }
    ways["all-inline"] = (*METHODS, "--engine", "inline")
    with ExitStack() as stack:
        under_way = [
            stack.enter_context(
                shared_place.started("fedkeel", "compare", *way, *settings, "--name", name)
            )
            for name, way in ways.items()
        ]
        for process in under_way:
            _, err = process.communicate(timeout=900)
            assert process.returncode == 0, err
    return {
        method: [f"{name}/{method}", f"all-inline/{method}"]
        for name, names in halves.items()
        for method in names
    }


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_ray_gives_the_weights_of_the_inline_engine(
    method: str, everyone: dict[str, list[str]], shared_place: Place
) -> None:
    ray, inline = (shared_place.records(name) for name in everyone[method])
    assert [record.dropped for record in ray] == [{}] * 3
    assert ray[-1].evaluation is not None
    assert ray[-1].evaluation.fairness is not None
    assert [record.evaluation for record in ray] == [record.evaluation for record in inline]
    assert len({shared_place.weights(name) for name in everyone[method]}) == 1
