"""The figures show what the runs hold, and nothing that is not there."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from common.rng import stream
from deploy.report.figures import plot_runs
from deploy.report.figures.style import COLOURS, SIZE, Style
from deploy.report.figures.svg import DOTS
from deploy.report.runs import Run
from tests.unit.deploy.report.test_table import NOTHING, UNEVALUATED, evaluation_of, record


def made_up(label: str, clients: int, rounds: int = 6, every: int = 2) -> Run:
    chance = stream(1, "made-up", label, clients)
    return Run(
        label,
        tuple(
            record(
                number,
                evaluation_of(*(int(x) for x in chance.integers(20, 90, clients)))
                if number % every == 0
                else None,
            )
            for number in range(1, rounds + 1)
        ),
    )


def coloured(path: Path, colour: str) -> int:
    """How many pixels above the legend are exactly of this colour."""
    picture = np.round(imread(path)[:-130, :, :3] * 255).astype(int)
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((picture == wanted).all(axis=2).sum())


@pytest.mark.parametrize("clients", [1, 2, 20, 100])
def test_each_run_is_drawn_in_its_colour(tmp_path: Path, clients: int) -> None:
    runs = [made_up(label, clients) for label in ("FedAvg", "FedProx", "FedPCD")]
    paths = plot_runs(runs, tmp_path / "plots", "made up")
    assert [path.name for path in paths] == ["accuracy.png", "clients.png"]
    for path in paths:
        assert imread(path).shape[1] == SIZE[0] * DOTS
        assert all(coloured(path, colour) > 50 for colour in COLOURS[:3])
        assert coloured(path, COLOURS[3]) == 0


@pytest.mark.parametrize("clients", [1, 5])
def test_a_single_evaluation_is_visible(tmp_path: Path, clients: int) -> None:
    accuracy, distribution = plot_runs([made_up("one", clients, rounds=2)], tmp_path)
    assert coloured(accuracy, COLOURS[0]) > 20
    assert coloured(distribution, COLOURS[0]) > 200


def test_a_run_without_evaluation_is_skipped_and_keeps_its_colour_free(tmp_path: Path) -> None:
    (accuracy, _) = plot_runs([UNEVALUATED, made_up("two", 5)], tmp_path)
    assert coloured(accuracy, COLOURS[0]) == 0
    assert coloured(accuracy, COLOURS[1]) > 50


def test_nothing_evaluated_draws_nothing(tmp_path: Path) -> None:
    assert plot_runs([NOTHING, UNEVALUATED], tmp_path / "none") == []
    assert plot_runs([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_awkward_labels_and_perfect_or_useless_models_can_be_drawn(tmp_path: Path) -> None:
    runs = [
        Run(r"$\broken$ [x] 100%", (record(1, evaluation_of(100, 100)),)),
        Run("useless " * 12, (record(1, evaluation_of(0, 0)),)),
    ]
    assert len(plot_runs(runs, tmp_path, r"$\frac$ " * 40)) == 2


def test_no_two_of_many_runs_look_the_same() -> None:
    styles = [Style.number(index) for index in range(4 * len(COLOURS))]
    assert len({(style.colour, style.marker) for style in styles}) == len(styles)
    assert len({(style.colour, style.line) for style in styles}) == len(styles)


def test_drawing_needs_no_pyplot_and_importing_loads_nothing_heavy(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from server_app.records import *
from deploy.report.figures import plot_runs
from deploy.report.runs import Run
print([name for name in ("flwr", "torch", "matplotlib") if name in sys.modules])
evaluation = Evaluation.of({"0": ClientScore(2, 1, 0.5)}, {})
run = Run("x", (RoundRecord(1, 0.1, [], [], evaluation=evaluation),))
print(len(plot_runs([run], Path(sys.argv[1]))), "matplotlib.pyplot" in sys.modules)
"""
    call = [sys.executable, "-c", code, str(tmp_path)]
    out = subprocess.run(call, capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["[]", "2 False"]
