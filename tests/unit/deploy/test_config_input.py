"""What is typed becomes a run config: files, pairs, the command's own keys, and places."""

from pathlib import Path

import pytest

from common.config import RunConfig
from common.errors import ConfigError
from deploy.config_input import describe_data, flatten, read_file, read_pair, run_config


def test_tables_become_dotted_keys() -> None:
    nested = {"rounds": 3, "train": {"lr": 0.1}, "data": {"name": "digits", "alpha": 1}}
    assert flatten(nested) == {
        "rounds": 3,
        "train.lr": 0.1,
        "data.name": "digits",
        "data.alpha": 1,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.lr=0.1", ("train.lr", 0.1)),
        ("rounds=3", ("rounds", 3)),
        ("train.augment=true", ("train.augment", True)),
        ("method=fedpvr", ("method", "fedpvr")),
        ('name="a b"', ("name", "a b")),
        ("data.name=folder:/a=b", ("data.name", "folder:/a=b")),
        (" rounds = 3 ", ("rounds", 3)),
        ("name=", ("name", "")),
    ],
)
def test_a_pair_is_typed_like_toml_and_else_a_text(text: str, expected: object) -> None:
    assert read_pair(text) == expected


def test_a_pair_needs_an_equals_sign() -> None:
    with pytest.raises(ConfigError, match='takes key=value, got "rounds 3"'):
        read_pair("rounds 3")


@pytest.mark.parametrize("content", [b"rounds = ", b"rounds: 3", b"\xff\xfe\x00"])
def test_a_file_that_is_not_toml_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml is not a TOML file"):
        read_file(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*none\.toml"):
        read_file(tmp_path / "none.toml")


def test_pairs_win_over_the_file_and_the_command_wins_over_both(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('method = "fedavg"\nrounds = 1\nclients = 7\n[train]\nlr = 0.5\n')
    config = run_config(path, ["rounds=2", "train.lr=0.25", "method=fedpcd"], {"method": "fedpvr"})
    assert (config.clients, config.rounds, config.train.lr) == (7, 2, 0.25)
    assert config.method == "fedpvr"
    assert config.seed == RunConfig().seed


def test_the_config_that_a_run_leaves_can_be_given_to_the_next(tmp_path: Path) -> None:
    import tomli_w

    from common.config import nested

    config = run_config(None, ["method=fedpvr", "train.lr=0.3", "out=/tmp/x"], {})
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(nested(config.to_flat())))
    assert run_config(path, [], {}) == config


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        run_config(None, ["roundz=3", "train.lr=-1", "clients=many"], {})
    said = str(caught.value)
    assert 'no key "roundz" (did you mean "rounds"?)' in said
    assert "train.lr must be more than 0" in said
    assert "clients must be a whole number" in said


def test_places_are_relative_to_where_the_command_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    config = run_config(None, ["out=here", "data.root=~/sets", "data.name=folder:my/pictures"], {})
    assert config.out == str(tmp_path / "here")
    assert config.data.root == "/home/ada/sets"
    assert config.data.name == f"folder:{tmp_path / 'my/pictures'}"
    assert run_config(None, [], {}).data.root == ""  # chosen by whoever loads the data


def test_a_run_is_described_in_a_line() -> None:
    said = describe_data(run_config(None, ["data.alpha=0.5", "clients=8", "participation=0.5"], {}))
    assert "digits, 8 clients, dirichlet-client alpha 0.5, mlp, 4 clients a round" in said
    assert "alpha" not in describe_data(run_config(None, ["data.partition=iid"], {}))


def test_a_config_file_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        read_file(Path("/dev/zero"))
