"""The run config: all problems at once, nothing unknown, one place for every default."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.config import MODEL_NAMES, RunConfig, cohort_size, parse
from common.errors import ConfigError
from common.methods import METHODS, FedPCD, FedPVR
from deploy.config_input import flatten

ROOT = Path(__file__).parents[3]


def problems_of(flat: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(flat)
    first, *rest = str(caught.value).split("\n  ")
    assert first == "the run config cannot be used:"
    return rest


def test_nothing_given_is_the_defaults() -> None:
    assert parse({}) == RunConfig()


def test_all_problems_are_told_in_one_go() -> None:
    said = problems_of(
        {
            "train.lr": -1.0,
            "train.epochs": 1.5,
            "fedpcd.tua": 0.1,
            "method": "fedpdc",
            "data.download": 1,
            "server.lr": True,
        }
    )
    known = ", ".join(map(json.dumps, METHODS))
    assert said == [
        'the run config has no key "fedpcd.tua" (did you mean "fedpcd.tau"?)',
        f"method must be one of {known}, not 'fedpdc' (did you mean \"fedpcd\"?)",
        "data.download must be true or false, not a whole number (1)",
        "train.lr must be more than 0, not -1.0",
        "train.epochs must be a whole number, not a number (1.5)",
        "server.lr must be a number, not true or false (True)",
    ]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("tau", "fedpcd.tau"),
        ("train.learning-rate", None),
        ("lr", "train.lr"),
        ("train.batch_size", "train.batch-size"),
        ("momentum", "train.momentum"),
        ("fedpcd.lr", "train.lr"),
        ("rouns", "rounds"),
        ("xyzzy", None),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_known(key: str, nearest: str | None) -> None:
    (said,) = problems_of({key: 1})
    assert said.startswith(f'the run config has no key "{key}"')
    assert nearest is None or said.endswith(f'(did you mean "{nearest}"?)')


def test_of_settings_with_the_same_name_the_one_of_the_runs_method_is_nearest() -> None:
    for method in ("fedpcd", "fedfv"):
        (said,) = problems_of({"method": method, "tau": 1})
        assert said.endswith(f'(did you mean "{method}.tau"?)')


@pytest.mark.parametrize(
    ("flat", "said"),
    [
        ({"train.lr": "0.1"}, "train.lr must be a number, not a text ('0.1')"),
        ({"train.lr": False}, "train.lr must be a number, not true or false (False)"),
        ({"train.lr": float("nan")}, "train.lr must be more than 0, not nan"),
        ({"train.lr": [0.1]}, "train.lr must be a number, not [0.1]"),
        ({"rounds": "3"}, "rounds must be a whole number, not a text ('3')"),
        ({"rounds": True}, "rounds must be a whole number, not true or false (True)"),
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"name": 5}, "name must be a text, not a whole number (5)"),
        ({"participation": 0.0}, "participation must be in (0, 1], not 0.0"),
        (
            {"train.device": "gpu"},
            'train.device must be one of "auto", "cpu", "cuda", not \'gpu\'',
        ),
        ({"fedpcd.tau": 1.5}, "fedpcd.tau must be in [0, 1], not 1.5"),
    ],
)
def test_what_has_the_wrong_type_or_range_is_refused(flat: dict[str, Any], said: str) -> None:
    assert problems_of(flat) == [said]


# A public report of this bug: https://github.com/TsingZ0/PFLlib/issues/160
@pytest.mark.parametrize("method", ["fedpvr", "scaffold"])
@pytest.mark.parametrize(("key", "value"), [("train.momentum", 0.9), ("train.weight-decay", 1e-4)])
def test_momentum_and_weight_decay_are_refused_at_start(
    method: str, key: str, value: float
) -> None:
    (said,) = problems_of({"method": method, key: value})
    assert said.startswith(f"{key} must be 0, not {value:g}: {method} estimates mean gradients")
    assert parse({"method": "fedavg", key: value}).train.to_table()[key.partition(".")[2]] == value


def test_combinations_that_cannot_work_are_refused() -> None:
    said = problems_of(
        {
            "clients": 10,
            "participation": 0.5,
            "server.min-replies": 6,
            "data.test-fraction": 0.5,
            "data.calibration-fraction": 0.5,
            "train.device": "cpu",
            "train.cuda-graph": True,
        }
    )
    assert len(said) == 3
    assert "train.cuda-graph needs a GPU" in said[0]
    assert "server.min-replies is 6, but a round asks only 5 of 10" in said[1]
    assert "leave nothing to train on" in said[2]


CHANGED = {
    "method": "fedpvr",
    "rounds": 7,
    "participation": 0.25,
    "name": "x",
    "resume": True,
    "data.alpha": 3.5,
    "train.lr": 0.3,
    "server.min-replies": 2,
    "fedavg.uniform": True,
    "fedpcd.tau": 0.5,
    "fedpvr.block": "last:2",
}


def test_a_config_is_read_back_from_its_flat_form() -> None:
    config = parse(CHANGED)
    flat = config.to_flat()
    assert parse(flat) == config
    assert parse(flat).to_flat() == flat
    assert {key: flat[key] for key in CHANGED} == CHANGED
    assert config.chosen == FedPVR(block="last:2")
    assert config.methods["fedpcd"] == FedPCD(tau=0.5)


def test_every_key_can_be_set_alone() -> None:
    for key, value in RunConfig().to_flat().items():
        assert parse({key: value}) == RunConfig()


def test_whole_numbers_are_taken_for_floats_as_flower_hands_them_over() -> None:
    assert parse({"train.lr": 1}) == parse({"train.lr": 1.0})
    assert type(parse({"train.lr": 1}).train.lr) is float


def test_pyprojects_copy_of_the_defaults_is_equal_to_them() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copy = flatten(table["tool"]["flwr"]["app"]["config"])
    defaults = RunConfig().to_flat()
    assert list(copy.items()) == list(defaults.items())
    assert {key: type(value) for key, value in copy.items()} == {
        key: type(value) for key, value in defaults.items()
    }


def test_every_setting_and_every_method_has_its_keys() -> None:
    flat = RunConfig().to_flat()
    for name, method in METHODS.items():
        assert {key for key in flat if key.startswith(f"{name}.")} == {
            f"{name}.{key}" for key in method().to_table()
        }


# ---------------------------------------------------------------- rounds


@pytest.mark.parametrize(
    ("fraction", "clients", "size"),
    [
        (0.1, 100, 10), (0.05, 100, 5), (0.29, 100, 29), (0.57, 100, 57), (0.5, 5, 2),
        (0.01, 20, 1), (1.0, 7, 7), (0.1, 1, 1),
    ],
)  # fmt: skip
def test_a_cohort_is_as_large_as_in_the_studies(fraction: float, clients: int, size: int) -> None:
    assert cohort_size(fraction, clients) == size
    config = replace(RunConfig(), participation=fraction, clients=clients)
    assert config.cohort_size == size


def test_the_learning_rate_decays_from_round_1_on() -> None:
    config = parse({"train.lr": 0.1, "train.lr-decay": 0.5})
    assert [config.local_lr(number) for number in (1, 2, 4)] == [0.1, 0.05, 0.0125]


def test_the_models_that_can_be_asked_for_are_those_that_there_are() -> None:
    from common.models import MODELS

    assert tuple(MODELS) == MODEL_NAMES


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("train.lr-decay", 1e-200, "is 0 before round 30"),
        ("name", "a/b", "name must be the name of a folder"),
        ("name", "..", "name must be the name of a folder"),
        ("name", "x" * 101, "at most 100 bytes"),
        ("name", "a\0b", "can be written to a file"),
        ("out", "\udcff", "can be written to a file"),
        ("rounds", 10**400, "at most 64 bits"),
        ("train.lr", 10**400, "at most 64 bits"),
        ("train.threads", 100_000, r"in \[1, 256\]"),
        ("clients", 10**6, r"in \[1, 100000\]"),
        ("data.name", "fashion_mnist", 'did you mean "fashion-mnist"'),
        ("fedpcd.solver", "ospq", 'did you mean "osqp"'),
    ],
)
def test_what_would_go_wrong_later_is_said_at_once(key: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse({key: value})
