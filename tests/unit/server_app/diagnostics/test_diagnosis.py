"""What the record of a diagnosed round says, and that nothing else changes by it."""

import json
import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from torch import nn

from common.config import RunConfig, parse
from common.data.image_batches import normalise
from common.diagnostics import drift_diversity, linear_cka
from common.errors import DataError
from common.federated_data import dataset_of, splits_of
from common.methods import FedAvg, FedPCD, Method
from common.models import FlatModel, build
from common.parallel import one_blas_thread
from common.rng import stream
from common.runs.records import RoundRecord
from common.types import Cohort, Step
from server_app.diagnostics.diagnosis import Diagnosis
from server_app.diagnostics.layer_similarity import BATCH, Probe, similarities
from server_app.state.server_state import ServerState
from tests.builders import Federation, cohort_of, compass, pictures

pytestmark = pytest.mark.usefixtures("flower_identity")
SIZE = 12
DIGITS = (1, 8, 8)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors are faster so; numpy's part is the diagnosis' own business."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with one_blas_thread():
        yield
    torch.set_num_threads(before)


def config_of(**settings: Any) -> RunConfig:
    """A run of 7 rounds with these `diagnostics` settings; by default no probe."""
    named = {"every": 1, "probe": 0} | settings
    flat = {f"diagnostics.{key}": value for key, value in named.items()}
    return parse({"method": "fedavg", "rounds": 7, "clients": 10, **flat})


def net(size: int) -> FlatModel:
    """A third of the weights in "classifier", the others in "features", as in toy federations."""
    head = max(1, size // 3)
    layers = {"features": size - head, "classifier": head}
    parts = {name: nn.Linear(width, 1, bias=False) for name, width in layers.items()}
    return FlatModel(nn.Sequential(OrderedDict(parts)))


def played(cohort: Cohort, method: Method[Any], model: FlatModel) -> tuple[Any, Step[Any]]:
    state = ServerState.first(model.layout, model.copy_weights(), {}, method)
    return state, method.aggregate(cohort, state.method, model.layout)


def diagnosed(
    deltas: Any, number: int = 1, method: Method[Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """The diagnostics of a round of the method, FedAvg by default, with these displacements."""
    cohort = cohort_of(np.asarray(deltas, np.float32), round=number)
    model = net(len(cohort.updates[0].delta))
    before, step = played(cohort, method or FedAvg(), model)
    return Diagnosis(config_of(**settings), model)(before, cohort, step)


def test_every_kth_round_and_the_last_are_diagnosed() -> None:
    numbers = [n for n in range(1, 8) if diagnosed(np.eye(3), n, every=3)]
    assert numbers == [3, 6, 7]


def test_drift_is_told_by_layer_and_client() -> None:
    told = diagnosed(np.eye(3))
    assert told["clients"] == ["1", "2", "3"]
    assert told["drift"] == {
        "whole": 1.0,
        "layers": {"features": 1.0, "classifier": 1.0},
        "infinite": [],
        "cancels": False,
    }


def test_what_cancels_is_named_since_json_has_no_infinity() -> None:
    told = diagnosed([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])["drift"]
    assert told["layers"] == {"features": None, "classifier": None}  # still, and cancelled
    assert told["infinite"] == ["classifier"]
    assert told["whole"] is None
    assert told["cancels"]


# ---------------------------------------------------------------- progress


def test_progress_of_the_published_example_is_told_beside_the_cosines() -> None:
    config = parse({"method": "fedpcd", "diagnostics.every": 1, "diagnostics.probe": 0})
    cohort, model = cohort_of(compass(10, 45, 155), clients=20), net(2)
    method = FedPCD(tau=0.25)
    before, step = played(cohort, method, model)
    told = Diagnosis(config, model)(before, cohort, step)
    gains = {"1": 0.36556265486684, "2": 0.84890279209976, "3": 0.25}
    assert told["progress"] == pytest.approx(gains, abs=1e-9)
    cosines = {"1": 0.35653474170784, "2": 0.82793834021861, "3": 0.24382601515855}
    assert told["cosine"] == pytest.approx(cosines, abs=1e-9)
    assert told["occupancy"] == {"held": 3, "expected": pytest.approx(5)}


def test_where_nothing_is_bent_progress_is_the_cosine() -> None:
    cohort, model = cohort_of(compass(35, 60, 85)), net(2)
    before, step = played(cohort, FedPCD(tau=0.25), model)
    told = Diagnosis(config_of(), model)(before, cohort, step)
    expected = {"1": 0.90630778703665, "2": 1, "3": 0.90630778703665}
    assert told["progress"] == pytest.approx(expected, abs=1e-9)


def test_a_method_without_constraints_has_cosines_alone() -> None:
    told = diagnosed([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    assert told["cosine"] == {"1": pytest.approx(0.5**0.5), "2": None, "3": pytest.approx(0.5**0.5)}
    assert not told.keys() & {"progress", "occupancy"}


# ---------------------------------------------------------------- CKA


def moves(clients: int, model: FlatModel) -> Cohort:
    shape = (clients, model.layout.size)
    deltas = stream(0, "moves", *shape).normal(size=shape) * 0.02
    return cohort_of(deltas.astype(np.float32))


def test_the_layers_of_the_clients_are_compared_on_drawn_test_samples() -> None:
    config, model = config_of(probe=100), FlatModel(build("mlp", DIGITS, 10, seed=1))
    cohort = moves(3, model)
    before, step = played(cohort, FedAvg(), model)
    diagnosis = Diagnosis(config, model)
    told = diagnosis(before, cohort, step)["cka"]
    assert told["examples"] == 100
    assert list(told["layers"]) == ["features.1", "features.3", "classifier"]

    data, splits = dataset_of(config.data), splits_of(config.data, 10, config.seed)
    pool = np.sort(np.concatenate([split.test for split in splits]))
    chosen = np.sort(stream(config.seed, "probe").choice(pool, 100, replace=False))
    images = normalise(torch.from_numpy(data.images[chosen]), data.mean, data.std)
    outputs = []
    for update in cohort.updates:
        own = FlatModel(build("mlp", DIGITS, 10, seed=1))
        own.load(before.weights - update.delta, {})
        with torch.no_grad():
            outputs.append((own.model.features[:4](images), own.model(images)))
    for place, name in ((0, "features.3"), (1, "classifier")):
        layer = told["layers"][name]
        x, y, z = (output[place].numpy() for output in outputs)
        pairs = [linear_cka(x, y), linear_cka(x, z), linear_cka(y, z)]
        matrix = layer["matrix"]
        assert [matrix[0][1], matrix[0][2], matrix[1][2]] == pytest.approx(pairs, rel=1e-5)
        assert layer["mean"] == pytest.approx(np.mean(pairs), rel=1e-5)
    assert diagnosis(before, cohort, step)["cka"] == told
    json.dumps(told, allow_nan=False)


def test_a_probe_is_no_larger_than_what_there_is_to_draw_from() -> None:
    config = config_of(probe=10_000)
    splits = splits_of(config.data, config.clients, config.seed)
    probe = Probe.drawn(config, net(3))
    assert len(probe.images) == sum(len(split.test) for split in splits)


def test_dropout_is_off_batches_do_not_matter_and_torch_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, model = pictures(BATCH // 8 + 3, side=16), FlatModel(build("cnn", (1, 16, 16), 3, seed=0))
    probe = Probe(model, data.images, data.mean, data.std)
    cohort = moves(2, model)
    before, _ = played(cohort, FedAvg(), model)
    chance, threads = torch.get_rng_state(), torch.get_num_threads()
    whole = similarities(probe, before, cohort)
    assert torch.equal(torch.get_rng_state(), chance)
    assert torch.get_num_threads() == threads
    assert not any(module._forward_hooks for module in model.model.modules())
    assert similarities(probe, before, cohort) == whole
    monkeypatch.setattr("server_app.diagnostics.layer_similarity.BATCH", 8)
    monkeypatch.setattr("server_app.diagnostics.layer_similarity.MEMORY", 1)  # one layer at a time
    parts = similarities(probe, before, cohort)
    assert list(parts["layers"]) == list(whole["layers"]) == model.layout.modules
    for name, layer in parts["layers"].items():
        assert layer["mean"] == pytest.approx(whole["layers"][name]["mean"], rel=1e-5)


def test_clients_that_moved_alike_are_alike_in_every_layer() -> None:
    model = FlatModel(build("mlp", DIGITS, 10, seed=1))
    move = np.full((1, model.layout.size), 0.01, np.float32)
    cohort = cohort_of(np.repeat(move, 2, axis=0))
    before, step = played(cohort, FedAvg(), model)
    told = Diagnosis(config_of(probe=50), model)(before, cohort, step)["cka"]["layers"]
    assert [layer["mean"] for layer in told.values()] == [pytest.approx(1, abs=1e-12)] * 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"data.name": "own", "data.classes": "a,b", "data.image-size": 8}, "clients' own"),
        ({"data.name": "folder:/nowhere"}, "/nowhere"),
        ({"data.test-fraction": 0.0}, "no test samples"),
    ],
)
def test_without_pictures_on_the_server_the_rest_is_told_and_the_reason_is_logged_once(
    data: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse({"method": "fedavg", "diagnostics.every": 1, **data})
    model, cohort = net(3), cohort_of(np.eye(3, dtype=np.float32))
    before, step = played(cohort, FedAvg(), model)
    diagnosis = Diagnosis(config, model)
    with caplog.at_level(logging.WARNING, "flwr"):
        told = [diagnosis(before, cohort, step) for _ in range(2)]
    assert len(caplog.records) == 1
    assert said in caplog.text
    for each in told:
        assert said in each["cka_why"]
        assert "cka" not in each
        assert each["drift"]["whole"] == 1.0


def test_a_model_that_cannot_take_the_pictures_costs_the_comparison_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        told = diagnosed(np.eye(3), probe=10)  # pictures of 64 pixels for 2 inputs
    assert "layers cannot be compared" in caplog.text
    assert "RuntimeError" in told["cka_why"]
    assert told["drift"]["whole"] == 1.0


# ---------------------------------------------------------------- in the strategy


class Watched(Federation):
    """A federation that diagnoses every round."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(FedAvg(), size=SIZE, **changes)
        self.strategy.diagnose = Diagnosis(config_of(), net(SIZE))


def test_the_record_holds_what_a_direct_computation_gives() -> None:
    federation = Watched()
    sent = federation.weights
    orders = federation.strategy.configure_train(1, federation.arrays, ConfigRecord(), federation)  # type: ignore[arg-type]
    deltas = [sent - federation.train_reply(order).weights for order in orders]
    federation.train(1)
    told = federation.record.diagnostics
    expected = drift_diversity(deltas, federation.layout)
    assert told["clients"] == federation.record.replied
    assert told["drift"]["whole"] == pytest.approx(expected.whole, rel=1e-12)
    assert told["drift"]["layers"] == pytest.approx(dict(expected.layers), rel=1e-12)
    again = RoundRecord.from_json(federation.record.to_json())
    assert again.diagnostics == told


def test_it_sees_the_weights_that_the_clients_received_and_the_step_from_there() -> None:
    seen: list[Any] = []

    def look(*shown: Any) -> dict[str, Any]:
        seen.extend(shown)
        return {}

    federation = Federation(FedAvg(), size=SIZE)
    federation.strategy.diagnose = look
    sent = federation.weights
    federation.train(1)
    before, cohort, step = seen
    assert before.round == 0
    assert np.array_equal(before.weights, sent)
    assert [update.client for update in cohort.updates] == federation.record.replied
    assert np.array_equal(sent - step.direction, federation.weights)


def test_a_void_round_has_none_and_old_records_still_read() -> None:
    federation = Watched(min_replies=6)
    federation.train(1)
    assert federation.record.void
    assert federation.record.diagnostics == {}
    line = federation.record.to_json()
    del line["diagnostics"]
    assert RoundRecord.from_json(line).diagnostics == {}


def test_a_diagnosis_that_fails_costs_the_round_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        raise DataError("no pictures")

    plain, watched = Federation(FedAvg(), size=SIZE), Watched()
    watched.strategy.diagnose = fail
    plain.train(1)
    with caplog.at_level(logging.WARNING, "flwr"):
        watched.train(1)
    assert "round 1 has no diagnostics: no pictures" in caplog.text
    assert watched.record.void is None
    assert watched.record.diagnostics == {}
    assert np.array_equal(plain.weights, watched.weights)
