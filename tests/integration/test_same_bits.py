"""The same seed gives the same model, bit for bit, however the work is spread or interrupted."""

from typing import Any

import pytest

from common.errors import CheckpointError
from tests.integration.conftest import Runner

METHODS = ["fedavg", "fedpcd", "fedpvr"]


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_and_several_give_the_same_bits(
    method: str, carried_out: Runner, with_dropout: dict[str, Any]
) -> None:
    alone = carried_out("alone", {**with_dropout, "method": method})
    side_by_side = carried_out("many", {**with_dropout, "method": method}, workers=3)
    assert alone.outcome.status == side_by_side.outcome.status == "completed"
    assert alone.weights == side_by_side.weights
    assert [r.train_loss for r in alone.records] == [r.train_loss for r in side_by_side.records]


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_ends_with_the_bits_of_a_straight_one(
    method: str, carried_out: Runner, with_dropout: dict[str, Any]
) -> None:
    settings = {**with_dropout, "method": method}
    straight = carried_out("straight", {**settings, "rounds": 6})
    first = carried_out("parts", {**settings, "rounds": 3})
    second = carried_out("parts", {**settings, "rounds": 6, "resume": True}, workers=2)
    assert [record.round for record in second.records] == [1, 2, 3, 4, 5, 6]
    assert [record.lr for record in second.records] == [record.lr for record in straight.records]
    assert second.weights == straight.weights != first.weights
    if method == "fedpcd":  # what a method remembers came back too
        histories = [record.method["history"] for record in second.records]
        assert histories == [record.method["history"] for record in straight.records]
        assert histories[3] > 0


@pytest.mark.parametrize("method", ["fedpcd", "scaffold", "feddyn"])
def test_what_is_remembered_on_disk_gives_the_bits_of_what_is_in_memory(
    method: str, carried_out: Runner
) -> None:
    settings = {"method": method, "clients": 6, "participation": 0.5}
    straight = carried_out("memory", {**settings, "rounds": 4})
    on_disk = {**settings, "server.on-disk": True}
    carried_out("disk", {**on_disk, "rounds": 2})
    resumed = carried_out("disk", {**on_disk, "rounds": 4, "resume": True})
    assert resumed.weights == straight.weights
    assert list((resumed.folder / "mapped").iterdir()) == []


def test_clients_own_models_go_back_with_a_run_that_goes_back(carried_out: Runner) -> None:
    settings = {"method": "ditto", "server.checkpoint-every": 2, "server.keep-checkpoints": 3,
                "eval-every": 1, "clients": 5, "participation": 0.4}  # fmt: skip
    straight = carried_out("straight", {**settings, "rounds": 6})
    first = carried_out("parts", {**settings, "rounds": 5})
    for name in ("round-000004.ckpt", "round-000005.ckpt"):
        (first.folder / "checkpoints" / name).unlink()
    again = carried_out("parts", {**settings, "rounds": 6, "resume": True}, workers=2)
    assert [record.evaluation for record in again.records] == [
        record.evaluation for record in straight.records
    ]
    assert again.weights == straight.weights


def test_convolutions_give_the_same_bits_side_by_side(carried_out: Runner) -> None:
    settings = {"model": "resnet8", "clients": 3, "participation": 1.0, "rounds": 2}
    alone, many = carried_out("alone", settings), carried_out("many", settings, workers=3)
    assert alone.weights == many.weights != ""


def test_another_seed_gives_another_model(carried_out: Runner) -> None:
    assert carried_out("one", {"rounds": 1}).weights != (
        carried_out("two", {"rounds": 1, "seed": 2}).weights
    )


def test_a_checkpoint_of_another_run_config_is_refused(carried_out: Runner) -> None:
    carried_out("run", {"rounds": 1})
    with pytest.raises(CheckpointError, match=r"another config \(train\.lr was 0\.1, is 0\.5\)"):
        carried_out("run", {"rounds": 2, "resume": True, "train.lr": 0.5})


def test_a_torn_checkpoint_costs_a_round_and_not_the_run(carried_out: Runner) -> None:
    straight = carried_out("straight", {"rounds": 4})
    carried_out("torn", {"rounds": 3})
    newest = max((straight.folder.parent / "torn").glob("*/*.ckpt"))
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    resumed = carried_out("torn", {"rounds": 4, "resume": True})
    assert resumed.weights == straight.weights
    assert [record.round for record in resumed.records] == [1, 2, 3, 4]
    assert "cannot be read" in resumed.log
