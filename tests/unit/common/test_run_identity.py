"""Which settings identify a run, for resume, sweeps and reports."""

import pytest

from common.config import RunConfig, parse
from common.run_identity import (
    IGNORED_BY_REPORT,
    IGNORED_BY_RESUME,
    IGNORED_BY_SWEEP,
    fingerprint,
    identifying_settings,
    sweep_identity,
)


def test_the_fingerprint_ignores_names_and_places() -> None:
    base = fingerprint(RunConfig())
    other = {
        "rounds": 99,
        "name": "other",
        "out": "/elsewhere",
        "resume": True,
        "eval-every": 1,
        "data.root": "/data",
        "data.download": False,
        "train.device": "cuda",
        "train.cuda-graph": True,
        "names": "a,b",
        "server.quorum": 1,
        "server.retries": 0,
        "server.patience": 1.0,
        "server.start-timeout": 1.0,
        "server.round-timeout": 1.0,
        "server.max-void-rounds": 9,
        "server.checkpoint-every": 1,
        "server.keep-checkpoints": 9,
        "server.on-disk": True,
        "server.group-access": True,
        "diagnostics.every": 1,
        "diagnostics.probe": 9,
        "diagnostics.gradients": True,
        "conformal.miscoverage": 0.2,
        "conformal.temperature": 2.0,
        "conformal.randomised": False,
        "conformal.k-reg": 2,
        "conformal.lam": 0.2,
        "conformal.bins": 99,
    }
    assert set(other) == IGNORED_BY_RESUME
    assert fingerprint(parse(other)) == base


def test_the_fingerprint_ignores_the_settings_of_methods_that_are_not_used() -> None:
    assert fingerprint(parse({"fedpvr.block": "*"})) == fingerprint(RunConfig())


CHANGES = {
    "method": "fedavg", "model": "cnn", "clients": 21, "participation": 0.4, "seed": 2,
    "data.name": "cifar10", "data.alpha": 0.2, "data.test-fraction": 0.3, "train.epochs": 2,
    "train.batch-size": 33, "train.lr": 0.2, "train.lr-decay": 0.9, "train.momentum": 0.1,
    "train.augment": True, "train.drop-last": True, "server.lr": 0.5, "server.min-replies": 2,
    "train.precision": "bfloat16", "fedpcd.tau": 0.1, "fedpcd.history": 0, "fedpcd.solver": "exact",
}  # fmt: skip


def test_every_setting_that_changes_the_results_changes_the_fingerprint() -> None:
    prints = {fingerprint(parse({key: value})) for key, value in CHANGES.items()}
    prints.add(fingerprint(RunConfig()))
    assert len(prints) == len(CHANGES) + 1


OF_DEFAULTS = {
    "afl": "54e2b7cf8be53602", "craft": "dff0b54c7c4950b3", "ditto": "c35bc210a6c7748c",
    "fedavg": "fe1ea38f46cdf0f8", "feddyn": "b0d235726550c9a6", "fedfv": "40d5532ef57148d0",
    "fedheal": "d9d4044f0876c603", "fedlf": "9e44fb8c2d8c7d37", "fedmgda": "d61ef906f86ee310",
    "fedpcd": "6bfed774380cf4e3", "fedprox": "20750529bd95504a", "fedpvr": "7641ca9d193036c7",
    "fedpw": "bd91b74e96208de6", "qffl": "3747447bd74f02c0", "scaffold": "a9ecb9bfa942cc19",
    "fedadam": "898627da466e1972", "fednova": "664f5856189febce",
    "krum": "17fb0e6ba3fd5c52", "median": "66caa497c7171d19", "trimmedmean": "cf18f913887a2310",
}  # fmt: skip


@pytest.mark.parametrize(("method", "digest"), OF_DEFAULTS.items())
def test_the_fingerprint_is_that_of_older_versions(method: str, digest: str) -> None:
    """A new setting belongs in NEWER_THAN_CHECKPOINTS, or their checkpoints are refused."""
    assert fingerprint(parse({"method": method})) == digest


def test_a_sweep_ignores_names_and_places_and_nothing_else() -> None:
    one = parse({"method": "fedavg"})
    same = {"name": "x", "out": "y", "data.root": "z", "train.device": "cpu", "fedpcd.tau": 0.5}
    other = {"rounds": 7, "eval-every": 1, "diagnostics.every": 1, "conformal.bins": 20, "seed": 2}
    assert sweep_identity(parse({"method": "fedavg", **same})) == sweep_identity(one)
    for key, value in other.items():
        assert sweep_identity(parse({"method": "fedavg", key: value})) != sweep_identity(one)
        assert key in identifying_settings(one.to_flat(), IGNORED_BY_SWEEP)


def test_a_report_ignores_the_seed_and_counts_the_rounds() -> None:
    settings = identifying_settings(RunConfig().to_flat(), IGNORED_BY_REPORT)
    assert {"rounds", "train.lr", "data.name", "method"} < settings.keys()
    assert not {"seed", "eval-every", "conformal.lam", "out", "fedpvr.block"} & settings.keys()


def test_every_ignored_key_is_a_key_of_the_run_config() -> None:
    ignored = IGNORED_BY_RESUME | IGNORED_BY_SWEEP | IGNORED_BY_REPORT
    assert ignored < RunConfig().to_flat().keys()


def test_without_a_method_no_settings_of_methods_count() -> None:
    assert identifying_settings({"fedpcd.tau": 0.5, "seed": 1}, ()) == {"seed": 1}
