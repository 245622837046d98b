"""Sweeps of real runs: comparable, resumed after kill -9, and never run twice."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from server_app.run_dir.run_dir import CHECKPOINTS
from tests.system.conftest import Place, make_place, wait_for

PLAN = """
name = "small"
[base]
clients = 4
participation = 0.5
rounds = 4
eval-every = 2
data.partition = "dirichlet-client"
server.checkpoint-every = 1
train.device = "cpu"
train.epochs = 8
[grid]
method = ["fedavg", "fedpcd"]
[[variants]]
label = "good"
[[variants]]
label = "other seed"
method = "fedavg"
seed = 2
[[variants]]
label = "broken"
method = "fedpvr"
fedpvr.block = "nonsense"
"""
GOOD = ("fedavg-good", "fedpcd-good", "fedavg-other-seed")
BROKEN = "fedpvr-broken"
SWEEP = ("fedkeel", "sweep", "plan.toml", "--jobs", "2")


def table(out: str) -> list[str]:
    """Return the printed table of results."""
    lines = [line.strip() for line in out.splitlines()]
    return lines[next(n for n, line in enumerate(lines) if line.startswith("digits,")) : -2]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, str]]:
    """Run an undisturbed sweep; yield its place and its output."""
    with make_place(tmp_path_factory.mktemp("straight")) as place:
        (place.work / "plan.toml").write_text(PLAN)
        done = place.call(*SWEEP)
        assert done.returncode == 1, done.stderr
        place.assert_tidy()
        yield place, done.stdout


def test_methods_get_the_same_split_cohorts_and_first_weights(
    straight: tuple[Place, str],
) -> None:
    place, _ = straight
    found = {name: place.records(f"small/{name}") for name in GOOD}
    split = {
        name: json.loads((place.run_dir(f"small/{name}") / "partition.json").read_text())
        for name in GOOD
    }
    one, two, other = GOOD
    assert [r.cohort for r in found[one]] == [r.cohort for r in found[two]]
    assert [r.cohort for r in found[one]] != [r.cohort for r in found[other]]
    assert split[one] == split[two] != split[other]
    # the loss of round 1 depends on their first weights, samples and batches
    assert found[one][0].train_loss == found[two][0].train_loss != found[other][0].train_loss
    assert place.weights(f"small/{one}") != place.weights(f"small/{two}")


def test_a_failing_run_is_reported_and_the_others_are_done(straight: tuple[Place, str]) -> None:
    place, out = straight
    why = 'no trainable module is named "nonsense"'
    assert f"{BROKEN} failed after" in out
    assert why in out.splitlines()[-1]  # and once more at the end, with the folder
    assert str(place.run_dir(f"small/{BROKEN}")) in out.splitlines()[-1]
    assert all((place.run_dir(f"small/{name}") / "weights.npz").exists() for name in GOOD)
    assert "3 of 4 runs done, 1 failed, 0 left" in out


def test_complete_runs_with_the_same_config_are_skipped(straight: tuple[Place, str]) -> None:
    place, _ = straight
    before = {path: path.stat().st_mtime_ns for path in place.run_dir("small").rglob("*.npz")}
    other = place.call(*SWEEP, "--set", "rounds=5")
    assert other.returncode == 2
    assert all(f"{name}: rounds was 4, is 5" in other.stderr for name in GOOD)
    text = PLAN.partition('label = "broken"')[0].rpartition("[[variants]]")[0]
    (place.work / "fewer.toml").write_text(text)
    again = place.call("fedkeel", "sweep", "fewer.toml")
    assert (again.returncode, again.stderr) == (0, "")
    assert "3 runs, 3 complete already" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.slow
def test_resume_of_a_sweep_killed_twice_gives_the_results_of_an_undisturbed_one(
    straight: tuple[Place, str], place: Place
) -> None:
    undisturbed, out = straight
    (place.work / "plan.toml").write_text(PLAN)
    runs = [place.run_dir(f"small/{name}") for name in GOOD]

    def complete() -> dict[Path, int]:
        return {run: (run / "outcome.json").stat().st_mtime_ns for run in runs if _done(run)}

    def under_way() -> list[Path]:
        return [run for run in runs if not _done(run) and list(run.glob(f"{CHECKPOINTS}/*.ckpt"))]

    for point in (under_way, lambda: complete() and under_way()):
        with place.started(*SWEEP) as process:
            wait_for(point)
            process.kill()
            process.wait()
        wait_for(lambda: place.processes() == [], 5)
        before, cut = complete(), under_way()

    last = place.call(*SWEEP)
    assert last.returncode == 1, last.stderr
    assert f"{len(before)} complete already" in last.stdout
    assert before == {run: complete()[run] for run in before}  # not touched again
    for run in cut:
        assert "going on after round" in (run / "output.log").read_text()
    for name in GOOD:
        assert place.weights(f"small/{name}") == undisturbed.weights(f"small/{name}")
        assert [r.round for r in place.records(f"small/{name}")] == [1, 2, 3, 4]
    assert table(last.stdout) == table(out)


def _done(run: Path) -> bool:
    return (run / "outcome.json").exists()
