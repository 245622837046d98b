"""A client's own model: kept on its disk, trained beside the one for all, evaluated as such."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from numpy.testing import assert_array_equal

from client_app import personal
from client_app.app import app
from client_app.client_data import load_client_data
from client_app.personal_store import PersonalModel, PersonalStore, folder_of
from common.config import parse
from common.errors import ClientError
from common.layout import Layout, Tensor
from common.models import FlatModel, build
from common.types import Vector
from common.wire.arrays import FlatCodec
from common.wire.content import ARRAYS, CONFIG, METRICS
from common.wire.messages import Order, TrainReply, read_train_reply
from common.wire.reply_metrics import CORRECT, LOSS_SUM, PERSONAL, PERSONAL_ROUND, read_metrics
from tests.builders import assert_same

pytestmark = pytest.mark.usefixtures("flower_identity")

BUFFER = Tensor("norm.running_mean", (2,))
LAYOUT = Layout((Tensor("classifier.weight", (3,)),), (BUFFER,))
SHAPE = (1, 8, 8)


def kept(number: int, value: float = 0.0) -> PersonalModel:
    weights = np.full(3, value or number, np.float32)
    return PersonalModel(number, weights, {BUFFER.name: np.array([number, 1], np.float32)})


def rounds_of(store: PersonalStore) -> list[int]:
    return store._rounds()


# ---------------------------------------------------------------- on disk


def test_what_was_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    store = PersonalStore(tmp_path / "new" / "folder", LAYOUT, span=10)
    assert store.latest(99) is None
    store.save(kept(3))
    assert_same(store.latest(3), kept(3))
    assert_same(store.latest(99), kept(3))
    assert store.latest(2) is None


def test_a_run_that_goes_back_finds_its_client_as_it_was_then(tmp_path: Path) -> None:
    """Rounds 4 and 7 are done again after a resume from round 3; the first time is forgotten."""
    store = PersonalStore(tmp_path, LAYOUT, span=10)
    for number in (2, 4, 7):
        store.save(kept(number))
    assert store.latest(3) is not None
    assert_same(store.latest(4 - 1), kept(2))
    store.save(kept(4, value=0.5))
    assert rounds_of(store) == [2, 4]
    assert_same(store.latest(6), kept(4, value=0.5))


@pytest.mark.parametrize("span", [0, 3, 10])
def test_no_more_versions_stay_than_a_resume_may_need(tmp_path: Path, span: int) -> None:
    store = PersonalStore(tmp_path, LAYOUT, span)
    for number in range(1, 31):
        store.save(kept(number))
        assert len(rounds_of(store)) <= span + 2
        for back in range(span + 1):  # of every round that a checkpoint may stand for
            if number - back >= 1:
                assert_same(store.latest(number - back), kept(number - back))


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 torn", None])
def test_a_damaged_or_foreign_version_is_passed_over_and_named(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = PersonalStore(tmp_path, LAYOUT, span=10)
    store.save(kept(1))
    if damage is None:
        other = replace(store, layout=Layout((Tensor("classifier.weight", (4,)),)))
        other.save(PersonalModel(3, np.zeros(4, np.float32), {}))
    else:
        store.save(kept(3))
        (tmp_path / "round-000003.npz").write_bytes(damage)
    assert_same(store.latest(5), kept(1))
    assert "round-000003.npz cannot be used" in caplog.text
    store.save(kept(3))
    assert_same(store.latest(5), kept(3))


def test_what_else_lies_in_the_folder_is_let_alone_but_for_what_was_left_half_written(
    tmp_path: Path,
) -> None:
    store = PersonalStore(tmp_path, LAYOUT, span=0)
    names = ("round-000001 (copy).npz", ".round-000001.npz.7-a.partial", ".round-9.npz.8-b.partial")
    for name in names:
        (tmp_path / name).touch()
    os.utime(tmp_path / names[2], (0, 0))
    store.save(kept(2))
    store.save(kept(4))
    assert_same(store.latest(9), kept(4))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*names[:2], "round-000002.npz", "round-000004.npz"}


def test_two_writers_at_once_never_leave_a_torn_version(tmp_path: Path) -> None:
    store = PersonalStore(tmp_path, LAYOUT, span=100)

    def write() -> None:
        for number in range(1, 40):
            store.save(kept(number))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(store.latest(99), kept(39))


@pytest.mark.parametrize("client", ["a" * 300, "客" * 63, "\ud800", "..", "", "a/b"])
def test_any_name_has_a_folder_that_can_be_made(tmp_path: Path, client: str) -> None:
    folder = folder_of(client)
    assert "/" not in folder
    (tmp_path / folder).mkdir()
    assert folder != folder_of(client + "x")


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClientError, match="personal model cannot be saved"):
        PersonalStore(tmp_path / "file" / "below", LAYOUT, span=10).save(kept(1))


# ---------------------------------------------------------------- in the ClientApp


def context_of(tmp_path: Path, client: int = 2, **settings: Any) -> Context:
    run = {"clients": 4, "data.partition": "iid", "train.device": "cpu", "method": "ditto",
           "name": "run", "out": str(tmp_path), **settings}  # fmt: skip
    node = {"partition-id": client, "num-partitions": 4, "keep": str(tmp_path / "kept")}
    return Context(1, 7, node, RecordDict(), parse(run).to_flat())


def order_of(kind: str, number: int, weights: Vector) -> Message:
    layout = flat_model().layout
    arrays = FlatCodec(layout).pack(weights, {})
    config = Order(number, 0.05, layout.digest).config()
    return Message(RecordDict({ARRAYS: arrays, CONFIG: config}), 1003, kind)


def flat_model() -> FlatModel:
    return FlatModel(build("mlp", SHAPE, 10, seed=1))


def trained(context: Context, number: int, weights: Vector) -> TrainReply:
    reply = app(order_of("train", number, weights), context)
    assert reply.has_content(), reply.error
    return read_train_reply(reply.content, FlatCodec(flat_model().layout), number)


def evaluated(context: Context, number: int, weights: Vector) -> dict[str, float]:
    reply = app(order_of("evaluate", number, weights), context)
    assert reply.has_content(), reply.error
    return read_metrics(RecordDict({METRICS: reply.content[METRICS]}))


def own(context: Context, until: int = 99) -> PersonalModel:
    found = PersonalStore.of(load_client_data(context.run_config, context.node_config)).latest(
        until
    )
    assert found is not None
    return found


def test_the_reply_is_fedavgs_and_the_own_model_stays_here(tmp_path: Path) -> None:
    weights = flat_model().copy_weights()
    ditto = trained(context_of(tmp_path), 1, weights)
    fedavg = trained(context_of(tmp_path, method="fedavg"), 1, weights)
    assert_same(ditto.weights, fedavg.weights)
    assert ditto.metrics.keys() == fedavg.metrics.keys()
    assert not ditto.client_payload
    assert own(context_of(tmp_path)).round == 1


def test_with_lambda_0_the_own_model_is_trained_alone(tmp_path: Path) -> None:
    """Its first round is the client's half of FedAvg; the second goes on from there."""
    context = context_of(tmp_path, **{"ditto.lam": 0.0})
    first = trained(context, 1, flat_model().copy_weights())
    assert_same(own(context).weights, first.weights)
    trained(context, 2, np.zeros_like(first.weights))  # whatever the server sends
    alone = trained(context, 2, first.weights)
    assert_same(own(context).weights, alone.weights)


def test_the_larger_lambda_the_nearer_the_own_model_is(tmp_path: Path) -> None:
    weights, gaps = flat_model().copy_weights(), []
    for lam in (0.0, 1.0, 10.0):
        context = context_of(tmp_path / str(lam), **{"ditto.lam": lam})
        for number in (1, 2, 3):
            trained(context, number, weights)
        gaps.append(float(np.linalg.norm(own(context).weights - weights)))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < gaps[0] / 3


def test_a_round_that_is_done_again_gives_the_same_own_model(tmp_path: Path) -> None:
    context, weights = context_of(tmp_path), flat_model().copy_weights()
    for number in (1, 3, 4):
        trained(context, number, weights)
    first = own(context)
    for number in (3, 4):
        trained(context, number, weights)
    assert_same(own(context), first)


def test_evaluation_counts_both_models_apart(tmp_path: Path) -> None:
    context, weights = context_of(tmp_path), flat_model().copy_weights()
    before = evaluated(context, 0, weights)
    assert before[PERSONAL_ROUND] == 0
    assert before[PERSONAL + CORRECT] == before[CORRECT]  # it would start as the one received
    for number in range(1, 9):
        trained(context, number, weights)
    after = evaluated(context, 8, weights)
    assert after[CORRECT] == before[CORRECT]
    assert after[PERSONAL_ROUND] == 8
    assert after[PERSONAL + CORRECT] > 2 * before[CORRECT]
    assert after[PERSONAL + LOSS_SUM] < before[LOSS_SUM]


def test_clients_runs_and_nodes_do_not_share_own_models(tmp_path: Path) -> None:
    weights = flat_model().copy_weights()
    contexts = [
        context_of(tmp_path, client=1),
        context_of(tmp_path, client=2),
        context_of(tmp_path, seed=5),
        context_of(tmp_path / "elsewhere"),
    ]
    for context in contexts:
        client = load_client_data(context.run_config, context.node_config)
        assert PersonalStore.of(client).latest(99) is None
        trained(context, 1, weights)
        assert_array_equal(own(context).round, 1)


def test_where_no_place_is_told_it_is_the_runs_folder_or_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    context = context_of(tmp_path)
    del context.node_config["keep"]
    client = load_client_data(context.run_config, context.node_config)
    assert tmp_path / "home/.fedkeel/kept" in PersonalStore.of(client).folder.parents
    (tmp_path / "run").mkdir()
    assert PersonalStore.of(client).folder == tmp_path / "run/personal/client-2"


@pytest.mark.parametrize("name", ["..", "a/../../b", "a b", "ä", "a\\b"])
def test_no_clients_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    context = context_of(tmp_path)
    folder = PersonalStore.of(
        load_client_data(context.run_config, context.node_config, name)
    ).folder
    assert folder.resolve().parent.name == "personal"
    assert tmp_path.resolve() in folder.resolve().parents


def test_an_own_model_that_diverges_starts_again_as_the_one_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context, weights = context_of(tmp_path), flat_model().copy_weights()
    trained(context, 1, weights)

    def diverge(*args: Any, **more: Any) -> None:
        raise ClientError("the loss became nan in local step 3")

    monkeypatch.setattr(personal, "train", diverge)
    reply = trained(context, 2, weights)
    assert np.isfinite(reply.weights).all()
    assert_same(own(context).weights, weights)
    assert own(context).round == 2
    assert "is replaced by the global model" in caplog.text
