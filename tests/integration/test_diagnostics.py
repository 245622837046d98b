"""Diagnosed runs from end to end: the same model, and numbers that hold."""

from typing import Any

import pytest

from client_app.client_data import load_client_data
from client_app.trainer import train
from common.config import parse
from common.diagnostics import drift_diversity
from common.methods import LocalRule
from common.models import FlatModel, build
from tests.integration.conftest import SMALL, Ran, Runner

ALL = {"diagnostics.every": 2, "diagnostics.probe": 20, "diagnostics.gradients": True}


def test_a_diagnosed_run_ends_with_the_bits_of_a_plain_one(
    carried_out: Runner, with_dropout: dict[str, Any]
) -> None:
    plain = carried_out("plain", {**with_dropout, "method": "fedpcd"})
    asked = carried_out("asked", {**with_dropout, "method": "fedpcd", **ALL}, workers=2)
    assert plain.weights == asked.weights != ""
    assert [r.train_loss for r in plain.records] == [r.train_loss for r in asked.records]
    assert [bool(record.diagnostics) for record in asked.records] == [False, True, True]
    assert not any(record.diagnostics for record in plain.records)
    told = asked.records[-1].diagnostics
    layers = ["features.0", "features.3", "head.1", "head.4", "classifier"]
    assert list(told["drift"]["layers"]) == list(told["cka"]["layers"]) == layers
    assert told["cka"]["examples"] == 20
    assert set(told["cosine"]) == set(told["progress"]) == set(asked.records[-1].replied)
    assert "the model has dropout" in told["theorem"]["why_not"]


def test_the_drift_of_a_round_is_that_of_what_its_clients_computed(carried_out: Runner) -> None:
    ran = carried_out("run", {"method": "fedpcd", "rounds": 1, **ALL})
    config = parse({**SMALL, "method": "fedpcd"})
    moves = []
    for client_id in ran.records[0].replied:
        node = {"partition-id": int(client_id), "num-partitions": config.clients}
        client = load_client_data(config.to_flat(), node, client_id)
        model = build(config.model, client.data.shape, len(client.data.classes), seed=config.seed)
        flat = FlatModel(model)
        sent = flat.copy_weights()
        train(
            flat, client.data, client.split.train, config.train, LocalRule(),
            lr=config.train.lr, seed=config.seed, path=(1, client_id),
        )  # fmt: skip
        moves.append(sent - flat.copy_weights())
    expected, told = drift_diversity(moves, flat.layout), ran.records[0].diagnostics["drift"]
    assert told["whole"] == pytest.approx(expected.whole, rel=1e-6)
    assert told["layers"] == pytest.approx(dict(expected.layers), rel=1e-6)


def theorem_of(ran: Ran) -> dict[str, Any]:
    assert ran.outcome.status == "completed"
    told: dict[str, Any] = ran.records[-1].diagnostics["theorem"]
    return told


def test_one_step_on_all_samples_of_all_clients_meets_every_premise_but_the_step(
    carried_out: Runner,
) -> None:
    settings = {"method": "fedpcd", "fedpcd.history": 0, "participation": 1.0, "rounds": 2,
                "train.batch-size": 10_000, **ALL}  # fmt: skip
    told = theorem_of(carried_out("exact", settings))
    assert told["steps"] == 1
    assert 0 <= told["r"] < 1e-4
    assert told["gamma_eff"] == pytest.approx(told["gamma"], abs=1e-3)
    assert all("times the smoothness seen" in why for why in told["why_not"])
    assert told["applies"] == (told["why_not"] == [])
    small = theorem_of(carried_out("small", {**settings, "server.lr": 1e-3}))
    assert small["applies"]


def test_an_ordinary_run_is_told_every_premise_it_does_not_meet(carried_out: Runner) -> None:
    settings = {"method": "fedpcd", "clients": 8, "participation": 0.25, "rounds": 1,
                "train.momentum": 0.5}  # fmt: skip
    why_not = theorem_of(carried_out("ordinary", {**settings, **ALL}))["why_not"]
    assert why_not[:4] == [
        "2 of 8 clients took part; the theorem needs all",
        "the history is 10 rounds; the theorem needs 0",
        "clients use momentum (0.5)",
        "clients train on mini-batches of 32",
    ]
