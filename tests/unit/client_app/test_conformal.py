"""A client counts its scores and its sets, from the model that it was sent."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from client_app import evaluator
from client_app.app import app
from client_app.client_data import ClientData, load_client_data
from client_app.conformal import calibrate, cover
from client_app.evaluator import logits_of
from common.config import parse
from common.conformal.conformal_replies import CalibrationReply, CoverageReply, ask
from common.conformal.prediction_sets import SCORES, bin_edges
from common.models import Dropout, FlatModel, build
from common.types import Vector
from common.wire.arrays import FlatCodec
from common.wire.content import ARRAYS, CONFIG
from common.wire.messages import Order
from tests.builders import pictures

pytestmark = pytest.mark.usefixtures("flower_identity")
BASE = {"clients": 4, "data.partition": "iid", "train.device": "cpu", "conformal.bins": 50,
        "data.calibration-fraction": 0.25}  # fmt: skip
ALL = {score: [inf] for score in SCORES}


def context_of(client: int = 2, **run: Any) -> Context:
    config = parse({**BASE, **{key.replace("__", "."): value for key, value in run.items()}})
    place = {"partition-id": client, "num-partitions": 4}
    return Context(1, 7, place, RecordDict(), config.to_flat())


def first() -> FlatModel:
    return FlatModel(build("mlp", (1, 8, 8), 10, seed=1))


def local_at(client: int = 2, **run: Any) -> ClientData:
    """A client whose thread holds the first model."""
    context = context_of(client, **run)
    client = load_client_data(context.run_config, context.node_config)
    client.flat.load(first().copy_weights(), {})
    return client


def order_of(kind: str, asks: Mapping[str, Any], weights: Vector | None = None) -> Message:
    flat = first()
    arrays = FlatCodec(flat.layout).pack(flat.copy_weights() if weights is None else weights, {})
    config = Order(1, 0.1, flat.layout.digest).config()
    return Message(
        RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({**config, **asks})}), 1003, kind
    )


def test_the_app_counts_scores_and_sets_when_it_is_asked() -> None:
    client = local_at()
    reply = app(order_of("evaluate.calibrate", {}), context_of())
    assert list(reply.content.config_records) == [CONFIG]
    counted = CalibrationReply.read(reply.content[CONFIG], 50)
    assert counted.examples == len(client.split.calibration) > 50
    reply = app(order_of("evaluate.cover", ask(ALL)), context_of())
    sets = CoverageReply.read(reply.content[CONFIG], 1, 10)
    assert sets.examples == len(client.split.test)
    for score in SCORES:
        assert sets.tallies[score][0].mean_size == 10
        assert sets.tallies[score][0].coverage == 1


def test_a_threshold_that_is_not_told_is_an_error_of_one_sentence() -> None:
    reply = app(order_of("evaluate.cover", {"thresholds.lac": [0.5]}), context_of())
    assert reply.error.reason == 'expected "thresholds.aps" as a list of numbers, got None'


# A public report of this bug: https://github.com/Project-MONAI/MONAI/pull/8938
def test_a_model_that_left_the_numbers_has_no_scores() -> None:
    bad = np.full(first().layout.size, np.nan, np.float32)
    reply = app(order_of("evaluate.calibrate", {}, bad), context_of())
    assert "samples are NaN or infinite, so these samples have no scores" in reply.error.reason


def test_a_client_without_samples_counts_none() -> None:
    client = local_at()
    nothing = np.zeros(0, np.int64)
    bare = replace(client, split=replace(client.split, calibration=nothing, test=nothing))
    scores, sets = calibrate(bare), cover(bare, ALL)
    assert CalibrationReply.read(scores.table(), 50).examples == 0
    assert CoverageReply.read(sets.table(), 1, 10).examples == 0


def test_draws_belong_to_the_seed_the_client_and_the_part() -> None:
    """The same samples under another name or seed get other draws; LAC draws nothing."""
    client = local_at()
    same = replace(client.split, test=client.split.calibration)
    levels = {score: [0.5] for score in SCORES}

    def told(one: ClientData) -> dict[str, list[int]]:
        counts = {score: counts.tolist() for score, counts in calibrate(one).counts.items()}
        return counts | {
            f"{score} sets": cover(one, levels).tallies[score][0].sizes.tolist() for score in SCORES
        }

    first = told(replace(client, split=same))
    assert told(replace(client, split=same)) == first
    others = (
        replace(client, split=same, client_id="another"),
        replace(client, split=same, config=replace(client.config, seed=7)),
    )
    for other in map(told, others):
        assert other["lac"] == first["lac"]
        assert other["aps"] != first["aps"]
        assert other["aps sets"] != first["aps sets"]


def test_without_draws_scores_are_those_of_whole_labels() -> None:
    client = local_at(conformal__randomised=False)
    firm = calibrate(client).counts["aps"]
    loose = calibrate(local_at()).counts["aps"]
    assert (np.cumsum(firm) <= np.cumsum(loose)).all()  # u = 1 is the largest score
    assert (firm != loose).any()


def test_a_temperature_flattens_what_the_model_says() -> None:
    cold, hot = (calibrate(local_at(conformal__temperature=t)).counts["lac"] for t in (0.1, 100.0))
    assert cold.sum() == hot.sum()
    near = np.abs(bin_edges("lac", 10, 50, k_reg=1, lam=0.1)[1:] - 0.9) < 0.04
    assert hot[near].sum() == hot.sum()  # 1 - 1/10
    assert np.count_nonzero(cold) > 5


def test_outputs_are_the_models_own_without_dropout_and_batch_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), Dropout(0.9), nn.Linear(16, 3))
    flat, data = FlatModel(net), pictures(30)
    before = flat.copy_buffers()
    chosen = np.arange(5, 30)
    whole = logits_of(flat, data, chosen)
    monkeypatch.setattr(evaluator, "BATCH", 4)
    assert_allclose(logits_of(flat, data, chosen), whole, atol=1e-6)
    assert (whole.shape, whole.dtype) == ((25, 3), np.float64)
    for name, value in flat.copy_buffers().items():
        assert_array_equal(value, before[name])
    assert not torch.is_inference_mode_enabled()
