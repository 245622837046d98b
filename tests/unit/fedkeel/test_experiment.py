"""`fedkeel.run` and `fedkeel.compare` on the digits, in this process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel

SETTINGS: dict[str, Any] = {"rounds": 2, "clients": 6, "participation": 0.5, "eval-every": 1}


def test_run_returns_its_tables_and_its_model(tmp_path: Path) -> None:
    result = fedkeel.run("fedpcd", settings=SETTINGS, out=tmp_path, name="first")
    assert result.run_dir == tmp_path / "first"
    assert result.outcome.status == "completed"
    assert [row.round for row in result.rounds] == [1, 2]
    assert all(row.clients == 3 and row.dropped == 0 and not row.void for row in result.rounds)
    assert {row.client for row in result.clients if row.round == 2} == {
        row.client for row in result.clients if row.round == 1
    }
    assert len(result.clients) == 12
    assert result.fairness is not None
    last = [row.accuracy for row in result.clients if row.round == 2]
    assert result.fairness.mean == result.rounds[-1].mean == pytest.approx(sum(last) / 6)
    weights = result.weights()
    for name, tensor in result.state_dict().items():
        assert np.array_equal(tensor.numpy(), weights[name])


def test_tables_are_columns_of_equal_length(tmp_path: Path) -> None:
    tables = fedkeel.run("fedavg", settings=SETTINGS, out=tmp_path).to_dict()
    assert tables.keys() == {"rounds", "clients"}
    assert {len(column) for column in tables["rounds"].values()} == {2}
    assert {len(column) for column in tables["clients"].values()} == {12}
    assert tables["rounds"]["round"] == [1, 2]


def test_two_runs_in_one_process_give_the_same_weights(tmp_path: Path) -> None:
    one, two = (fedkeel.run("fedpcd", settings=SETTINGS, out=tmp_path) for _ in range(2))
    assert one.run_dir != two.run_dir
    assert (one.run_dir / "weights.npz").read_bytes() == (two.run_dir / "weights.npz").read_bytes()


def test_nested_settings_mean_the_same_as_flat_ones(tmp_path: Path) -> None:
    flat = fedkeel.run("fedavg", settings={**SETTINGS, "train.lr": 0.05}, out=tmp_path)
    nested = fedkeel.run("fedavg", settings={**SETTINGS, "train": {"lr": 0.05}}, out=tmp_path)
    assert flat.config.train.lr == nested.config.train.lr == 0.05
    assert flat.rounds[-1].train_loss == nested.rounds[-1].train_loss


def test_compare_gives_every_method_the_same_data(tmp_path: Path) -> None:
    results = fedkeel.compare(
        ["fedavg", "fedpcd", "fedavg"], settings=SETTINGS, out=tmp_path, name="both"
    )
    assert list(results) == ["fedavg", "fedpcd"]
    for method, result in results.items():
        assert result.run_dir == tmp_path / "both" / method
    samples = [[(row.client, row.examples) for row in r.clients] for r in results.values()]
    assert samples[0] == samples[1]


def test_resumed_run_continues_to_the_same_weights(tmp_path: Path) -> None:
    whole = fedkeel.run("fedpcd", settings=SETTINGS, out=tmp_path, name="whole")
    half = {**SETTINGS, "rounds": 1}
    fedkeel.run("fedpcd", settings=half, out=tmp_path, name="parts")
    parts = fedkeel.run("fedpcd", settings=SETTINGS, out=tmp_path, name="parts", resume=True)
    assert [row.round for row in parts.rounds] == [1, 2]
    for name, array in parts.weights().items():
        assert array.tobytes() == whole.weights()[name].tobytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "fedpdc"}, 'did you mean "fedpcd"'),
        ({"method": "fedavg", "settings": {"rouns": 3}}, 'did you mean "rounds"'),
        ({"method": "fedavg", "engine": "inlin"}, 'did you mean "inline"'),
        ({"method": "fedavg", "engine": "superlink"}, "needs superlink="),
        ({"method": "fedavg", "resume": True}, "needs the name of the run"),
        ({"method": "fedavg", "settings": {"method": "fedpcd"}}, "remove method from"),
        ({"method": "fedavg", "settings": [("rounds", 2)]}, "must be a mapping of run-config keys"),
        ({"method": "fedavg", "engine": None}, 'no engine "None"'),
        ({"method": "fedavg", "workers": -1}, "workers must be at least 0, not -1"),
        ({"method": "fedavg", "client_gpus": float("nan")}, "client-gpus must be a finite number"),
    ],
)
def test_wrong_argument_is_a_config_error(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(fedkeel.ConfigError, match=message):
        fedkeel.run(**arguments, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_run_that_fails_raises_with_the_reason(tmp_path: Path) -> None:
    settings = {**SETTINGS, "train.lr": 1e30, "server.max-void-rounds": 1}
    with pytest.raises(fedkeel.RunFailedError, match="fedavg failed: "):
        fedkeel.run("fedavg", settings=settings, out=tmp_path)


def test_state_dict_holds_torch_tensors(tmp_path: Path) -> None:
    result = fedkeel.run("fedavg", settings=SETTINGS, out=tmp_path)
    assert all(isinstance(value, torch.Tensor) for value in result.state_dict().values())


def test_compare_refuses_one_method_as_text(tmp_path: Path) -> None:
    with pytest.raises(fedkeel.ConfigError, match=r'a list of methods, such as \["fedavg"\]'):
        fedkeel.compare("fedavg", out=tmp_path)


def test_settings_may_be_scalars_of_numpy(tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": np.int64(1), "train.lr": np.float64(0.05)}
    assert fedkeel.run("fedavg", settings=settings, out=tmp_path).config.train.lr == 0.05
