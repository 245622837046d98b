"""A run notes who holds which classes, where it knows."""

import logging
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from common.config import parse
from common.federated_data import dataset_of, splits_of
from common.runs.class_counts import PARTITION, read_class_counts
from server_app.run_dir.class_counter import count_classes, save_class_counts, saving_class_counts

CONFIG = parse({"clients": 7, "data.alpha": 0.3, "data.calibration-fraction": 0.2, "seed": 5})


def test_the_counts_are_those_of_the_samples_that_clients_train_on(tmp_path: Path) -> None:
    save_class_counts(tmp_path, CONFIG)
    found = read_class_counts(tmp_path)
    assert found == count_classes(CONFIG)
    assert found is not None
    assert list(found.clients) == [str(k) for k in range(7)]
    data, splits = dataset_of(CONFIG.data), splits_of(CONFIG.data, 7, 5)
    for split, counts in zip(splits, found.clients.values(), strict=True):
        assert sum(counts) == len(split.train)
        assert {k for k, count in enumerate(counts) if count} == set(data.labels[split.train])
    assert np.sum(list(found.clients.values())) < len(data)  # tests and calibration are apart


def test_it_is_noted_when_what_goes_on_meanwhile_is_over_or_has_failed(tmp_path: Path) -> None:
    for name in ("over", "failed"):
        (folder := tmp_path / name).mkdir()
        with suppress(KeyboardInterrupt), saving_class_counts(folder, CONFIG):
            if name == "failed":
                raise KeyboardInterrupt
        assert read_class_counts(folder) == count_classes(CONFIG)


def test_without_the_data_a_warning_is_logged_and_no_file_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    save_class_counts(tmp_path, parse({"data.name": "folder:/nowhere/at/all"}))
    assert "partition.json is not written" in caplog.text
    assert read_class_counts(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "\xff",
        "[" * 100_000,
        '{"classes": ["a"], "clients": {"0": [1, 2]}}',
        '{"classes": ["a"], "clients": {"0": 5}}',
        '{"classes": ["a"], "clients": {"0": ["x"]}}',
        '{"classes": ["a"], "clients": {"0": [null]}}',
        '{"classes": ["a"], "clients": {"0": [-1]}}',
        '{"classes": ["a"], "clients": {"0": [1e308]}}',
        '{"classes": ["a"], "clients": {"0": [1' + "0" * 400 + "]}}",
        '{"classes": [1], "clients": {"0": [1]}}',
        '{"classes": [null], "clients": {"0": [1]}}',
        '{"classes": "abc", "clients": {"0": [1, 2, 3]}}',
        '{"classes": [], "clients": []}',
        '{"classes": [], "clients": {"0": []}}',
    ],
)
def test_a_file_with_other_content_counts_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / PARTITION).write_text(text)
    assert read_class_counts(tmp_path) is None
