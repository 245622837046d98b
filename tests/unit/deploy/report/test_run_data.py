"""A run's config is known from its file or not at all; it is never guessed."""

from pathlib import Path

import pytest

from common.config import RunConfig, parse
from common.runs.records import CONFIG_FILE
from deploy.report.run_data import read_config
from server_app.run_dir.run_dir import RunDir

GIVEN = {"method": "fedavg", "clients": 7, "seed": 3, "train.lr": 0.3}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The config of a FedAvg run with 7 clients."""
    folder = RunDir.open(parse({**GIVEN, "out": str(tmp_path), "name": "mine"}))
    return folder.path / CONFIG_FILE


def test_a_config_is_read_as_it_was_written(file: Path) -> None:
    assert read_config(file.parent) == {**parse(GIVEN).to_flat(), "name": "mine"}


def test_what_an_older_version_did_not_write_has_its_default(file: Path) -> None:
    text = file.read_text()
    file.write_text("\n".join(line for line in text.split("\n") if "eval-every" not in line))
    assert read_config(file.parent)["eval-every"] == RunConfig.eval_every
    assert read_config(file.parent)["clients"] == 7


def test_what_another_version_wrote_besides_is_kept(file: Path) -> None:
    file.write_text("brand-new = 3\n" + file.read_text())
    known = read_config(file.parent)
    assert (known["brand-new"], known["method"], known["clients"]) == (3, "fedavg", 7)


@pytest.mark.parametrize(
    "key", ["method", "model", "clients", "seed", "rounds", "participation", "name"]
)
def test_without_a_key_that_every_version_writes_it_is_not_known(key: str, file: Path) -> None:
    lines = file.read_text().split("\n")
    kept = [line for line in lines if not line.startswith(f"{key} = ")]
    assert len(kept) == len(lines) - 1
    file.write_text("\n".join(kept))
    assert read_config(file.parent) == {}


def test_an_empty_or_cut_config_is_not_known(file: Path) -> None:
    text = file.read_text()
    for length in (0, 20, text.index("[data]"), text.index("[data]") + 3):
        file.write_text(text[:length])
        assert read_config(file.parent) == {}
    file.unlink()
    assert read_config(file.parent) == {}


@pytest.mark.parametrize(
    "wrong", ['clients = "7"', "clients = true", "clients = [7]", "clients = 0", "[clients]"]
)
def test_a_config_with_a_value_that_no_run_has_is_not_known(wrong: str, file: Path) -> None:
    file.write_text(file.read_text().replace("clients = 7", wrong))
    assert read_config(file.parent) == {}


def test_bytes_that_are_no_text_are_not_known(file: Path) -> None:
    file.write_bytes(b"\xff\x00" + file.read_bytes())
    assert read_config(file.parent) == {}
