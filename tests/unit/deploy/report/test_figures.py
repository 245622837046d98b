"""The figures show what the runs hold, and nothing that is not there."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from common.config import parse
from common.rng import stream
from common.runs.class_counts import PARTITION
from common.runs.conformal_results import CONFORMAL
from common.runs.records import RECORDS, Recorder, RoundRecord
from deploy.report.figures import FIGURES, drawn, plot_runs, write_figures
from deploy.report.figures.canvas import SIZE
from deploy.report.figures.style import COLOURS, Style, series_of
from deploy.report.figures.svg import DOTS, for_page, svg_text
from deploy.report.run_data import RunData, read_run
from deploy.report.run_groups import Study, group_runs
from server_app.run_dir.run_dir import RunDir
from tests.unit.deploy.report.test_run_summary import NOTHING, UNEVALUATED, evaluation_of, record

LAYERS = ("features.1", "classifier")


def made_up(label: str, clients: int, rounds: int = 6, every: int = 2) -> RunData:
    chance = stream(1, "made-up", label, clients)
    return RunData(
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


@pytest.mark.parametrize("clients", [2, 100])
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
        RunData(r"$\broken$ [x] 100%", (record(1, evaluation_of(100, 100)),)),
        RunData("useless " * 12, (record(1, evaluation_of(0, 0)),)),
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
from typing import Any
from xml.etree import ElementTree
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.records import RoundRecord
from deploy.report.figures import plot_runs
from deploy.report.run_data import RunData
print([name for name in ("flwr", "torch", "matplotlib") if name in sys.modules])
evaluation = Evaluation.of({"0": ClientScore(2, 1, 0.5)}, {})
run = RunData("x", (RoundRecord(1, 0.1, [], [], evaluation=evaluation),))
print(len(plot_runs([run], Path(sys.argv[1]))), "matplotlib.pyplot" in sys.modules)
"""
    call = [sys.executable, "-c", code, str(tmp_path)]
    out = subprocess.run(call, capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["[]", "2 False"]


# ---------------------------------------------------------------- studies with everything in them


def diagnosed(number: int, clients: list[str], shift: float = 0.0) -> RoundRecord:
    """An evaluated round that says all that a round can say."""
    chance = stream(2, "diagnosed", number, len(clients))
    m = len(clients)
    table = chance.uniform(0.6, 1.0, (m, m))
    matrix = ((table + table.T) / 2).tolist()
    drift: dict[str, Any] = {name: 0.4 + shift + k for k, name in enumerate(LAYERS)}
    return record(
        number,
        evaluation_of(*(int(x) for x in chance.integers(20 + 60 * shift, 95, 12))),
        method={"rows": 2 * m, "active": m, "feasible": number % 2 == 0},
        dropped={"7": "weights hold a NaN"} if number == 2 else {},
        diagnostics={
            "clients": clients,
            "drift": {"whole": 0.9, "layers": drift, "infinite": [], "cancels": False},
            "cosine": {client: 0.4 - 0.25 * k for k, client in enumerate(clients)},
            "occupancy": {"held": 2 * m, "expected": 1.9 * m},
            "theorem": {"applies": False, "why_not": ["half of the clients took part"]},
            "cka": {"examples": 8, "layers": {n: {"mean": 0.8, "matrix": matrix} for n in LAYERS}},
        },
    )


def level(miscoverage: float) -> dict[str, Any]:
    told = {"miscoverage": miscoverage, "rank": 9, "threshold": 0.5, "examples": 9}
    size = {"coverage": 1 - miscoverage, "mean_size": 2 - 3 * miscoverage, "sizes": [0, 9]}
    return {**told, **size, "coverage_by_size": [None, 0.9]}


def conformal() -> dict[str, Any]:
    row = {"calibration": 3, "test": 3, "coverage": 2 / 3, "mean_size": 1.0}
    other = {**row, "coverage": None, "mean_size": None}
    return {
        "round": 4, "settings": {"miscoverage": 0.1}, "classes": 3, "minimum": 9, "examples": 9,
        "calibration": {}, "uncalibrated": {}, "test": {}, "untested": {}, "accuracy": 0.7,
        "scores": {s: [level(0.05), level(0.1)] for s in ("lac", "aps", "raps")},
        "clients": {s: {"0": row, "1": row, "2": other} for s in ("lac", "aps", "raps")},
        "warnings": ["few samples"], "problem": None,
    }  # fmt: skip


def full_run(folder: Path, name: str, shift: float = 0.0, **flat: Any) -> RunData:
    """A run with everything beside it; {"fedpcd__tau": 0.1} stands for {"fedpcd.tau": 0.1}."""
    changes = {key.replace("__", "."): value for key, value in flat.items()}
    config = parse({"rounds": 4, "out": str(folder), "name": name, **changes})
    path = RunDir.open(config).path
    for number in range(1, 5):
        Recorder(path / RECORDS).append(diagnosed(number, ["0", "1", "2"], shift))
    (path / CONFORMAL).write_text(json.dumps(conformal()))
    split = {"classes": ["a", "b"], "clients": {"0": [9, 1], "1": [0, 30], "2": [0, 0]}}
    (path / PARTITION).write_text(json.dumps(split))
    return read_run(path)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two methods, two seeds, a sweep and an ablation, and all that runs can leave behind."""
    folder = tmp_path_factory.mktemp("runs")
    settings: list[dict[str, Any]] = [
        {"method": "fedavg"},
        {"method": "fedpcd"},
        {"method": "fedpcd", "fedpcd__history": 3},
        {"method": "fedpcd", "fedpcd__history": 0},
        {"method": "fedpcd", "fedpcd__normalise": False, "fedpcd__tau": 0.02},
        {"method": "fedpcd", "fedpcd__tau": 0.1},
        {"method": "fedpcd", "fedpcd__solver": "exact"},
        {"method": "scaffold"},
    ]
    runs = [
        full_run(folder, f"{place}-{seed}", shift=place / 20, seed=seed, **told)
        for place, told in enumerate(settings)
        for seed in (1, 2)
    ]
    (study,) = group_runs(runs)
    return study


@pytest.fixture(scope="module")
def svgs(full: Study) -> dict[str, str]:
    """Its figures by name."""
    return {picture.name: svg_text(figure) for picture, figure in drawn(full)}


def words_of(svg: str) -> str:
    """What is written in a figure."""
    return " ".join(filter(None, ElementTree.fromstring(svg).itertext()))


def test_a_study_with_everything_has_every_figure(svgs: dict[str, str]) -> None:
    names = [picture.name for picture in FIGURES]
    assert len(names) == len(set(names))
    assert set(names) - svgs.keys() == {"traffic"}  # all of them send as much


def test_a_study_without_anything_has_no_figure() -> None:
    for runs in ([], [NOTHING], [UNEVALUATED], [RunData("x", (record(1), record(2)))]):
        assert [name for study in group_runs(runs) for name in drawn(study)] == []


@pytest.mark.parametrize("clients", [1, 300])
def test_every_number_of_clients_can_be_drawn(tmp_path: Path, clients: int) -> None:
    (study,) = group_runs([made_up("one", clients), made_up("two", clients)])
    names = {picture.name for picture, figure in drawn(study) if svg_text(figure)}
    assert names >= {"accuracy", "clients", "spread", "tenth", "target"}


def test_the_same_study_gives_the_same_bytes(tmp_path: Path) -> None:
    (study,) = group_runs([made_up("one", 20)])
    for folder in ("a", "b"):
        write_figures(study, tmp_path / folder)
    paths = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {Path(name).suffix for name in paths} == {".png", ".svg"}
    for name in paths:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_figures_say_what_the_records_say(svgs: dict[str, str]) -> None:
    words = {name: words_of(svg) for name, svg in svgs.items()}
    assert "fedpcd history=3" in words["target"]
    assert "fedavg: 33 % against" in words["cosines"]
    assert all(name in words["drift-layers"] for name in LAYERS)
    assert "all equal (1/3)" in words["drift-layers"]
    assert "0.800" in words["cka"]
    assert "clients in the step of fedavg" in words["memory"]
    assert {"history=0", "normalise=false"} <= set(words["ablations"].split())
    assert "fedpcd.history" in words["values"]
    assert "promised 90 %" in words["sets-lac"]
    assert re.search(r"\ba\b.*\bb\b.*0.*2.*1", " ".join(words["partition"].split()))


def test_a_client_that_gains_nothing_is_not_worked_against() -> None:
    said = {"cosine": {"0": 0.4, "1": 0.0, "2": -0.1, "3": None}}
    one = record(1, evaluation_of(50), diagnostics=said)
    (study,) = group_runs([RunData("x", (one,), parse({"method": "fedavg"}).to_flat())])
    (words,) = [words_of(svg_text(f)) for picture, f in drawn(study) if picture.name == "cosines"]
    assert "fedavg: 33 % against" in words


def test_what_is_undefined_is_left_out(tmp_path: Path) -> None:
    """Infinite drift, clients that did not move, layers without a similarity, sets of nobody."""
    one = diagnosed(1, ["0", "1"])
    told = json.loads(json.dumps(one.diagnostics))
    told["drift"] |= {"whole": None, "layers": dict.fromkeys(LAYERS)}
    told["cosine"] = {"0": None, "1": None}
    told["cka"]["layers"] = {name: {"mean": None, "matrix": [[None] * 2] * 2} for name in LAYERS}
    sets = conformal()
    for rows in sets["scores"].values():
        for row in rows:
            row |= {"coverage": None, "mean_size": None}
    sets |= {"accuracy": None, "clients": {}}
    config = parse({"out": str(tmp_path), "name": "x"})
    path = RunDir.open(config).path
    Recorder(path / RECORDS).append(record(1, evaluation_of(50, 60), diagnostics=told))
    (path / CONFORMAL).write_text(json.dumps(sets))
    (study,) = group_runs([read_run(path)])
    for picture, figure in drawn(study):
        assert "nan" not in words_of(svg_text(figure)).lower(), picture.name


def test_in_a_page_colours_are_the_pages_and_ids_do_not_meet(svgs: dict[str, str]) -> None:
    seen: set[str | None] = set()
    for name, plain in svgs.items():
        svg = for_page(plain, name, "words")
        own = {node.get("id") for node in ElementTree.fromstring(svg).iter()} - {None}
        assert own
        assert not own & seen
        seen |= own
        targets = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg))
        assert {one or other for one, other in targets} <= own
        assert not re.findall(r"#[0-9a-f]{6}\b", svg), name
        assert "http" not in svg


def test_colours_stay_with_their_families_while_others_have_no_result_yet() -> None:
    runs = [made_up(name, 4) for name in ("a", "b", "c")]
    early = group_runs([replace(runs[0], records=()), *runs[1:]])[0]
    late = group_runs(runs)[0]
    styles = {each.name: each.style for each in series_of(late)}
    assert [each.style for each in series_of(early)] == [styles["b"], styles["c"]]


def test_of_many_the_reference_and_one_for_each_method_have_a_colour() -> None:
    def of(method: str, right: int, **flat: Any) -> RunData:
        config = parse({"method": method, "rounds": 1, **flat}).to_flat()
        return RunData("x", (record(1, evaluation_of(right, right)),), config)

    sweep = [of("fedpcd", 80 + k, **{"fedpcd.history": k}) for k in range(12)]
    (study,) = group_runs([*sweep, of("fedavg", 10)])
    shown = [each.name for each in series_of(study) if not each.style.faint]
    assert shown == ["fedpcd", "fedavg"]
    assert len(series_of(study)) == 13


def test_odd_names_can_be_drawn() -> None:
    names = ["$x^2$", "_hidden", "<b>&", "\u4e00\u4e8c", "a\x00b", "\ud800", " ", "n" * 300]
    runs = [RunData(name, (record(1, evaluation_of(50, 60)),)) for name in names]
    (study,) = group_runs(runs)
    for _, figure in drawn(study):
        assert words_of(svg_text(figure).encode().decode())
