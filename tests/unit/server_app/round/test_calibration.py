"""What the server makes of clients' counts, and of clients that give none."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config import RunConfig, parse
from common.conformal.conformal_replies import (
    CALIBRATE,
    CalibrationReply,
    CoverageReply,
    read_coverage_request,
)
from common.conformal.prediction_sets import (
    SCORES,
    Outputs,
    Tally,
    bin_edges,
    histogram,
    prediction_sets,
)
from common.errors import AggregationError, FedError
from common.rng import stream
from common.runs.client_scores import NO_EXAMPLES
from common.runs.conformal_results import (
    CONFORMAL,
    ConformalResults,
    read_conformal,
    write_conformal,
)
from common.runs.json_file import RecordError
from server_app.round.calibration import LEVELS, NO_CALIBRATION, calibrate_model

CLASSES, BINS = 4, 200
Sizes = Mapping[str, tuple[int, int]]  # calibration and test samples by client
Change = Callable[[str, str, dict[str, Any]], dict[str, Any]]


class Clients:
    """Clients with drawn outputs that answer as real ones do, through their tables."""

    def __init__(self, sizes: Sizes, change: Change = lambda *asked: asked[2]) -> None:
        self.sizes = sizes
        self.change = change
        self.asked: list[str] = []

    def drawn(self, client: str, count: int, part: str) -> tuple[Outputs, np.ndarray]:
        rng = stream(0, part, client)
        s = rng.dirichlet(np.full(CLASSES, 0.5), size=count)
        labels = (s.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1).clip(0, CLASSES - 1)
        return Outputs(s, rng.random(count), 1, 0.1), labels

    def table(self, action: str, client: str, asks: Mapping[str, Any]) -> dict[str, Any]:
        calibration, test = self.sizes[client]
        if action == CALIBRATE:
            out, labels = self.drawn(client, calibration, action)
            counts = {
                name: histogram(
                    score(out)[np.arange(calibration), labels],
                    bin_edges(name, CLASSES, BINS, k_reg=1, lam=0.1),
                )
                for name, score in SCORES.items()
            }
            return CalibrationReply(calibration, counts).table()
        out, labels = self.drawn(client, test, action)
        thresholds = read_coverage_request(asks)
        tallies = {
            name: [
                Tally.of(prediction_sets(score(out), q, out.top), labels) for q in thresholds[name]
            ]
            for name, score in SCORES.items()
        }
        return CoverageReply(test, int((out.top == labels).sum()), tallies).table()

    def __call__(self, action: str, asks: Mapping[str, Any], read: Any) -> Any:
        self.asked.append(action)
        told, missing = {}, {}
        for client in self.sizes:
            try:
                told[client] = read(self.change(action, client, self.table(action, client, asks)))
            except FedError as error:
                missing[client] = str(error)
        return told, missing


def config_of(**settings: Any) -> RunConfig:
    flat = {key.replace("__", "."): value for key, value in settings.items()}
    return parse({"conformal.bins": BINS, "data.calibration-fraction": 0.2, **flat})


def made(clients: Clients, **settings: Any) -> ConformalResults:
    return calibrate_model(clients, config_of(**settings), CLASSES, 7)


MANY = {str(client): (40, 50) for client in range(5)}


def test_the_sets_keep_their_promise_on_the_clients_test_samples() -> None:
    sets = made(Clients(MANY))
    assert (sets.round, sets.classes, sets.examples, sets.minimum) == (7, CLASSES, 200, 9)
    assert (sets.problem, sets.warnings) == (None, [])
    assert sets.accuracy is not None
    for score in SCORES:
        rows = sets.scores[score]
        assert tuple(row.miscoverage for row in rows) == LEVELS
        for row in rows:
            assert row.examples == sum(row.sizes) == 250
            assert row.coverage is not None
            assert row.coverage > 1 - row.miscoverage - 0.12
            assert row.mean_size == np.arange(CLASSES + 1) @ row.sizes / 250
        assert [row.mean_size for row in rows] == sorted(
            (row.mean_size for row in rows), reverse=True
        )
        assert sets.chosen(score) in rows
        shares = [one.coverage for one in sets.clients[score].values()]
        assert np.mean(shares) == pytest.approx(sets.chosen(score).coverage)


def test_the_configured_level_is_one_of_the_levels() -> None:
    sets = made(Clients(MANY), conformal__miscoverage=0.123)
    assert [row.miscoverage for row in sets.scores["lac"]] == sorted([*LEVELS, 0.123])
    assert sets.chosen("lac").rank == 177  # ceil(201 * 0.877)


def test_the_order_of_the_clients_is_irrelevant() -> None:
    one, other = made(Clients(MANY)), made(Clients(dict(reversed(MANY.items()))))
    assert one == other


# A public report of this bug: https://github.com/Project-MONAI/MONAI/pull/8938
def test_too_few_samples_make_sets_of_all_labels_and_say_so() -> None:
    sets = made(Clients({"0": (5, 20), "1": (3, 20)}))
    [warning] = sets.warnings
    assert warning.startswith(
        "8 calibration samples are too few for a miscoverage of 0.1: at least"
    )
    assert warning.endswith("9 are needed; every set holds all labels")
    for score in SCORES:
        chosen = sets.chosen(score)
        assert (chosen.threshold, chosen.rank) == (None, 9)
        assert (chosen.coverage, chosen.mean_size) == (1.0, CLASSES)
        assert sets.scores[score][-1].threshold is not None
    assert made(Clients({"0": (5, 20), "1": (4, 20)})).warnings == []


def test_clients_that_have_nothing_count_for_nothing_and_are_listed() -> None:
    sets = made(Clients({"0": (0, 30), "1": (40, 0), "2": (40, 30), "10": (0, 0)}))
    assert sets.calibration == {"1": 40, "2": 40}
    assert sets.uncalibrated == {"0": NO_CALIBRATION, "10": NO_CALIBRATION}
    assert sets.test == {"0": 30, "2": 30}
    assert sets.untested == {"1": NO_EXAMPLES, "10": NO_EXAMPLES}
    told = sets.clients["aps"]
    assert (told["0"].calibration, told["1"].calibration) == (0, 40)
    assert (told["0"].test, told["1"].test) == (30, 0)
    assert (told["1"].coverage, told["1"].mean_size) == (None, None)
    assert sets.chosen("aps").examples == 60


def test_an_invalid_reply_excludes_only_its_own_client() -> None:
    def change(action: str, client: str, table: dict[str, Any]) -> dict[str, Any]:
        if (action, client) == (CALIBRATE, "1"):
            return {**table, "examples": 39}
        return {**table, "correct": 51} if client == "3" else table

    sets = made(Clients(MANY, change))
    assert sets.uncalibrated == {"1": "40 scores of lac were counted on 39 samples"}
    assert sets.untested == {"3": "51 correct answers of 50 are impossible"}
    assert (sets.examples, sets.chosen("lac").examples) == (160, 200)
    assert sets.clients["lac"]["1"].calibration == 0


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [({"0": (0, 5)}, "no client has calibration samples"), ({}, "no client has calibration")],
)
def test_nothing_to_calibrate_with_is_a_reason_and_no_crash(sizes: Sizes, problem: str) -> None:
    clients = Clients(sizes)
    sets = made(clients)
    assert problem in (sets.problem or "")
    assert (sets.scores, sets.accuracy) == ({}, None)
    assert clients.asked == [CALIBRATE]


@pytest.mark.parametrize("error", [AggregationError("too few are there"), RuntimeError("broken")])
def test_an_exchange_that_fails_leaves_its_reason(error: Exception, tmp_path: Path) -> None:
    def fails(*asked: object) -> Any:
        raise error

    sets = calibrate_model(fails, config_of(), CLASSES, 7)
    assert sets.problem == str(error)
    write_conformal(tmp_path, sets)
    assert read_conformal(tmp_path) == sets


def test_when_nobody_counts_its_sets_thresholds_stay_and_numbers_are_undefined() -> None:
    def change(action: str, client: str, table: dict[str, Any]) -> dict[str, Any]:
        return table if action == CALIBRATE else {}

    sets = made(Clients(MANY, change))
    chosen = sets.chosen("aps")
    assert chosen.threshold is not None
    assert (chosen.examples, chosen.coverage, chosen.mean_size) == (0, None, None)
    assert sets.accuracy is None
    assert "nothing is measured" in sets.warnings[0]
    assert set(sets.untested) == set(MANY)


def test_the_file_says_null_for_what_is_undefined_and_is_read_as_it_was_written(
    tmp_path: Path,
) -> None:
    sets = made(Clients({"0": (5, 20), "1": (3, 0)}))
    write_conformal(tmp_path, sets)
    text = (tmp_path / CONFORMAL).read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["scores"]["lac"][0]["threshold"] is None
    assert read_conformal(tmp_path) == sets


def test_a_run_without_prediction_sets_has_none(tmp_path: Path) -> None:
    assert read_conformal(tmp_path) is None


WRONG: list[tuple[list[Any], Any]] = [
    (["settings"], {}),
    (["settings"], 5),
    (["settings", "miscoverage"], 0.123),
    (["settings", "miscoverage"], "x"),
    (["settings", "miscoverage"], None),
    (["scores", "lac"], []),
    (["scores", "lac", 0, "coverage"], "x"),
    (["scores", "lac", 0, "mean_size"], "x"),
    (["accuracy"], "x"),
    (["warnings"], 5),
    (["warnings"], None),
    (["clients"], 5),
    (["clients", "lac", "0", "coverage"], "x"),
]


@pytest.mark.parametrize(("place", "value"), WRONG)
def test_a_value_of_another_type_is_reported(tmp_path: Path, place: list[Any], value: Any) -> None:
    write_conformal(tmp_path, made(Clients(MANY)))
    told: Any = json.loads((tmp_path / CONFORMAL).read_text())
    whole = told
    for key in place[:-1]:
        whole = whole[key]
    whole[place[-1]] = value
    (tmp_path / CONFORMAL).write_text(json.dumps(told))
    with pytest.raises(RecordError, match=r"conformal\.json does not hold prediction sets"):
        read_conformal(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"round": 1}', '{"scores": 3, "clients": 1}', "[" * 100_000]
)
def test_a_file_that_holds_something_else_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / CONFORMAL).write_text(text)
    with pytest.raises(RecordError, match=r"conformal\.json does not hold prediction sets"):
        read_conformal(tmp_path)
