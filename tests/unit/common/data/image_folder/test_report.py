"""Before joining, an owner sees what the federation would get from the folder, and why not more."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from common.data import FolderOptions, inspect_folder, load_folder, own_options
from common.data.image_folder import decode as reading
from common.errors import DataError
from tests.unit.common.data.image_folder.images import pets, picture

FEDERATION = own_options(("cat", "dog", "zebra"), size=8, channels=3)


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_folder(path, FEDERATION)
    return str(caught.value)


def test_it_counts_per_class_and_says_what_was_found(tmp_path: Path) -> None:
    pets(tmp_path, train=3, test=2)
    picture(tmp_path / "train" / "dog" / "grey.png", size=(30, 20), mode="L")
    report = inspect_folder(tmp_path, FEDERATION)
    assert report.counts == {
        "train": {"cat": 3, "dog": 4, "zebra": 0},
        "test": {"cat": 2, "dog": 2, "zebra": 0},
    }
    assert (report.usable, report.files, report.skipped, report.problems) == (11, 11, (), ())
    assert (report.smallest, report.largest, report.grey) == ((5, 6), (20, 30), 1)
    assert report.shape == (3, 8, 8)


def test_a_flat_folder_is_all_for_training(tmp_path: Path) -> None:
    picture(tmp_path / "dog" / "1.png")
    report = inspect_folder(tmp_path, FEDERATION)
    assert report.counts["train"] == {"cat": 0, "dog": 1, "zebra": 0}
    assert set(report.counts["test"].values()) == {0}


def test_everything_that_loading_would_refuse_is_a_problem_and_not_an_error(
    tmp_path: Path,
) -> None:
    pets(tmp_path, train=3, test=0)
    (tmp_path / "train" / "cat" / "bad.jpg").write_text("x")
    picture(tmp_path / "train" / "Zebra" / "1.png")
    report = inspect_folder(tmp_path, FEDERATION)
    unknown, bad = report.problems
    assert '"Zebra" (did you mean "zebra"?)' in unknown
    assert "1 of 7 files cannot be used" in bad
    assert [name for name, _ in report.skipped] == ["train/cat/bad.jpg"]
    assert report.usable == 6
    assert refusal(tmp_path) == unknown
    (tmp_path / "train" / "Zebra").rename(tmp_path / "train" / ".Zebra")
    assert refusal(tmp_path) == bad
    (tmp_path / "train" / "cat" / "bad.jpg").unlink()
    assert inspect_folder(tmp_path, FEDERATION).problems == ()


@pytest.mark.parametrize("name", ["Cat", "cat"])
def test_when_nothing_can_be_used_it_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "1.jpg").write_text("x")
    with pytest.raises(DataError, match=r"no class of the federation|1 of 1 files"):
        inspect_folder(tmp_path, FEDERATION)
    with pytest.raises(DataError, match="no folder"):
        inspect_folder(tmp_path / "nowhere", FEDERATION)


def test_what_was_inspected_is_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect_folder(pets(tmp_path), FEDERATION)
    monkeypatch.setattr(reading, "read_header", None)
    data = load_folder(tmp_path, FEDERATION)
    assert np.asarray(data.images).shape == (10, 3, 8, 8)


def test_neither_inspecting_nor_loading_needs_torch(tmp_path: Path) -> None:
    pets(tmp_path)
    script = """
import sys
from pathlib import Path
from common.config import parse
from common.data import inspect_folder, load_folder, own_options, split_own
options = own_options(("cat", "dog"), 8, 3)
inspect_folder(Path(sys.argv[1]), options)
data = load_folder(Path(sys.argv[1]), options)
split_own(data, seed=1, client="a", test_fraction=0.2)
print(sorted({"torch", "torchvision", "flwr", "sklearn"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_options_that_a_federation_cannot_mean_are_refused() -> None:
    assert FolderOptions() == FolderOptions(mean=None, std=None)
    for mean, std in ((0.5, None), (None, 0.25), (0.5, 0.0), (0.5, float("nan"))):
        with pytest.raises(DataError, match="mean"):
            FolderOptions(mean=mean, std=std)
