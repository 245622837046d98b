"""The programs of `bench.round` do the same work."""

import argparse
from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from bench import pictures
from bench.peers import PEERS, Against
from bench.reference.net import Net
from bench.reference.pictures import deal, read
from bench.reference.plain import average
from bench.round import of_record, ours, show, summary, table
from bench.trial import Trial
from bench.work import Work
from common import federated_data
from common.config import RunConfig, parse
from common.data import Dataset
from common.models import build
from common.runs.client_scores import ClientScore, Evaluation
from common.runs.records import RoundRecord
from deploy.config_input import read_pair

WORK = Work("/data")


def fedkeels_config() -> RunConfig:
    argv = ours("inline", WORK).argv
    return parse(dict(read_pair(argv[at + 1]) for at, word in enumerate(argv) if word == "--set"))


def test_fedkeel_deals_every_client_the_same_number_of_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = WORK.clients * (WORK.train + WORK.test)
    labels = np.arange(pool) % 10
    images = np.zeros((pool, 1, 1, 1), np.uint8)
    data = Dataset("fake", images, labels, tuple("0123456789"), pool, (0.0,), (1.0,))
    monkeypatch.setattr(federated_data, "dataset_of", lambda _: data)
    config = fedkeels_config()
    assert config.cohort_size == WORK.cohort
    splits = federated_data.splits_of.__wrapped__(config.data, config.clients, config.seed)
    assert [len(split.train) for split in splits] == [WORK.train] * WORK.clients
    assert [len(split.test) for split in splits] == [WORK.test] * WORK.clients


def test_the_references_deal_each_picture_once() -> None:
    train, test = deal(WORK)
    assert (train.shape, test.shape) == ((100, 500), (100, 100))
    assert sorted(np.concatenate([train.ravel(), test.ravel()])) == list(range(60_000))


def test_the_references_model_has_the_shapes_of_fedkeels() -> None:
    theirs = [p.shape for p in Net().parameters()]
    assert theirs == [p.shape for p in build("cnn", (3, 32, 32), 10, seed=0).parameters()]


def test_the_plain_loop_averages() -> None:
    states = [{"w": torch.tensor([float(k), 0.0])} for k in (1, 2, 6)]
    assert average(states)["w"].tolist() == [3.0, 0.0]


def test_drawn_pictures_can_be_read_and_are_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "RECORDS", 20)
    for name in ("a", "b"):
        pictures.draw(tmp_path / name)
    (images, labels), again = (read(Work(str(tmp_path / name))) for name in ("a", "b"))
    assert (images.shape, labels.max()) == ((120, 3, 32, 32), 9)
    assert np.array_equal(images, again[0])
    assert np.array_equal(labels, again[1])


def test_a_rounds_seconds_are_all_but_its_evaluation() -> None:
    record = RoundRecord(1, 0.1, [], [], seconds={"train": 2.0, "checkpoint": 0.5, "evaluate": 9.0})
    assert of_record(record.to_json()) == {"seconds": 2.5}
    scores = {"a": ClientScore(4, 1, 1.0), "b": ClientScore(4, 3, 1.0)}
    last = RoundRecord(2, 0.1, [], [], seconds={}, evaluation=Evaluation.of(scores, {}))
    assert of_record(last.to_json())["accuracy"] == 0.5


def test_ratios_are_to_the_fastest_plain_loop() -> None:
    trials = [Trial(1.0, [9, wall, 9], [wall, 9], 0.5, wall) for wall in (1.0, 2.0, 4.0)]
    row = summary(trials)
    assert (row["wall"], row["low"], row["high"], row["cpu"]) == (2.0, 1.0, 4.0, 2.0)
    assert (row["others"], row["runs"]) == (4.0, 3)
    rows = {"plain-1x1": {**row, "wall": 4.0}, "inline": {**row, "wall": 3.0}}
    with Console(width=200, record=True) as console:
        console.print(table(rows, "t"))
    assert "0.75" in console.export_text()
    assert table({"inline": row}, "t").row_count == 1  # nothing to compare it to


def test_a_row_whose_runs_were_disturbed_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    given = argparse.Namespace(rounds=3, root=None, json=None)
    calm, busy = (Trial(1.0, [1.0] * 3, [1.0] * 2, 0.5, others) for others in (0.1, 0.11))
    show(given, {"flower": [calm], "inline": [calm, calm]}, None)
    assert "!" not in capsys.readouterr().out
    show(given, {"flower": [calm], "inline": [calm, busy]}, None)
    marked = [line for line in capsys.readouterr().out.splitlines() if "!" in line]
    assert [line.split()[0] for line in marked] == ["inline", "!:"]


def test_pictures_are_refused_when_a_file_is_missing_or_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "RECORDS", 2)
    with pytest.raises(ArgumentTypeError, match=r"no file .*-bin/data_batch_1\.bin"):
        pictures.found(str(tmp_path))
    pictures.draw(tmp_path)
    assert pictures.found(str(tmp_path)) == tmp_path
    last = tmp_path / "cifar-10-batches-bin/test_batch.bin"
    last.write_bytes(last.read_bytes()[1:])
    with pytest.raises(ArgumentTypeError, match=r"test_batch\.bin has not 6,146 bytes"):
        pictures.found(str(tmp_path))
    last.unlink()
    with pytest.raises(ArgumentTypeError, match=r"no file .*test_batch\.bin"):
        pictures.found(str(tmp_path))


def test_a_peer_is_refused_where_it_is_not(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="NAME one of pfl"):
        Against.read("plf=/tmp")
    with pytest.raises(ArgumentTypeError, match="no checkout of apple/pfl-research"):
        Against.read(f"pfl={tmp_path}")
    for peer in PEERS.values():
        (tmp_path / peer.needs).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / peer.needs).touch()
    with pytest.raises(ArgumentTypeError, match="no Python at"):
        Against.read(f"pfl={tmp_path}:{tmp_path}/python")


@pytest.mark.parametrize("name", PEERS)
def test_a_peers_command_is_its_pythons(tmp_path: Path, name: str) -> None:
    needs = tmp_path / PEERS[name].needs
    needs.parent.mkdir(parents=True)
    needs.touch()
    python = tmp_path / "python"
    python.touch()
    command = Against.read(f"{name}={tmp_path}:{python}").command("{}", "log", 7)
    assert command[0] == str(python)
    assert Path(f"bench/peers/{PEERS[name].module}.py").is_file()
    assert "{}" in command
    assert not any("{cores}" in part for part in command)
