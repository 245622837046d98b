"""A folder of pictures is a data set: same labels everywhere, bad files listed, built once."""

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from common.data.image_folder import FolderOptions, cache, load_folder
from common.data.sources import load
from common.errors import DataError
from tests.unit.common.data.image_folder.images import pets, picture, spoil


def test_train_comes_first_then_test_each_by_class(tmp_path: Path) -> None:
    data = load(f"folder:{pets(tmp_path)}")
    assert data.images.shape == (10, 3, 5, 6)
    assert data.classes == ("cat", "dog")
    assert data.train_size == 6
    assert_array_equal(data.labels, [0, 0, 0, 1, 1, 1, 0, 0, 1, 1])
    assert_array_equal(data.images[:, 0, 0, 0], [0, 1, 2, 100, 101, 102, 50, 51, 150, 151])
    assert isinstance(data.images, np.memmap)
    assert not data.images.flags.writeable
    assert_allclose(data.mean, [(data.images[:6] / 255).mean()] * 3)


# A public report of this bug: https://github.com/ultralytics/ultralytics/issues/13936
def test_one_class_list_gives_one_numbering(tmp_path: Path) -> None:
    federation = FolderOptions(classes=("cat", "dog", "zebra"))
    numbers = {}
    for client, names in (("a", ("cat", "dog")), ("b", ("dog", "zebra"))):
        for name in names:
            picture(tmp_path / client / "train" / name / "1.png")
        data = load_folder(tmp_path / client, federation)
        assert data.classes == ("cat", "dog", "zebra")
        numbers[client] = data.labels.tolist()
    assert numbers == {"a": [0, 1], "b": [1, 2]}


@pytest.mark.parametrize("name", ["Cat", "dog ", "unknown"])
def test_a_folder_the_federation_does_not_know_is_refused(tmp_path: Path, name: str) -> None:
    picture(tmp_path / "train" / name / "1.png")
    with pytest.raises(DataError) as caught:
        load_folder(tmp_path, FolderOptions(classes=("cat", "dog", "zebra")))
    assert f'"{name}"' in str(caught.value)
    hints = {"Cat": 'did you mean "cat"?', "dog ": 'did you mean "dog"?', "unknown": "cat, dog"}
    assert hints[name] in str(caught.value)


def test_hidden_and_empty_folders_are_no_classes_and_2_comes_before_10(
    tmp_path: Path,
) -> None:
    for name in ("10", "2", "1"):
        picture(tmp_path / "train" / name / "deep" / "1.png")
    picture(tmp_path / "train" / ".ipynb_checkpoints" / "1.png")
    picture(tmp_path / "train" / "1" / ".ipynb_checkpoints" / "copy.png")
    (tmp_path / "train" / "zebra").mkdir()
    (tmp_path / "train" / "1" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "train" / ".DS_Store").write_bytes(b"x")
    data = load_folder(tmp_path)
    assert data.classes == ("1", "2", "10")
    assert (len(data), data.skipped) == (3, ())


# A public report of this bug: https://github.com/pytorch/vision/issues/138
def test_bad_files_are_listed_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pets(tmp_path, train=100, test=0)
    gif = tmp_path / "train" / "cat" / "gif.png"
    Image.new("RGB", (6, 5), "white").save(gif, format="GIF")
    bad = spoil(tmp_path / "train" / "cat")
    with caplog.at_level(logging.WARNING):
        data = load_folder(tmp_path)
    assert len(data) == 201
    assert {Path(name).name for name, _ in data.skipped} == bad
    assert all(name.startswith("train/cat/") and reason for name, reason in data.skipped)
    assert "truncated" in dict(data.skipped)["train/cat/cut.png"]
    assert "9000 x 9000" in dict(data.skipped)["train/cat/large.png"]
    assert f"{len(bad)} of {201 + len(bad)} files" in caplog.text


def test_too_many_bad_files_stop_with_their_list(tmp_path: Path) -> None:
    pets(tmp_path, train=10, test=0)
    (tmp_path / "train" / "cat" / "bad.jpg").write_bytes(b"")
    assert len(load_folder(tmp_path)) == 20  # 1 of 21
    (tmp_path / "train" / "cat" / "worse.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"(?s)2 of 22 files.*5\.0%.*bad\.jpg: .*worse\.jpg: "):
        load_folder(tmp_path)
    assert len(load_folder(tmp_path, FolderOptions(max_bad=0.1))) == 20


def test_nothing_usable_is_an_error_even_when_all_may_be_bad(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "1.jpg").write_text("x")
    with pytest.raises(DataError, match="1 of 1 files"):
        load_folder(tmp_path, FolderOptions(max_bad=1.0))
    assert [path.name for path in (tmp_path / ".fedkeel-cache").iterdir()] == [".lock"]


@pytest.mark.parametrize("made", ["", "train", "train/cat"])
def test_an_empty_or_absent_folder_says_what_was_expected(tmp_path: Path, made: str) -> None:
    (tmp_path / "data" / made).mkdir(parents=True)
    with pytest.raises(DataError, match="train"):
        load_folder(tmp_path / "data")


def test_the_size_is_kept_or_the_commonest_short_side_or_what_was_asked(tmp_path: Path) -> None:
    for number, size in enumerate([(20, 10), (10, 12), (30, 30)]):
        picture(tmp_path / "train" / "cat" / f"{number}.png", size=size)
    assert load_folder(tmp_path).shape == (3, 10, 10)
    assert load_folder(tmp_path, FolderOptions(size=7)).shape == (3, 7, 7)
    for number in range(4):
        picture(tmp_path / "train" / "cat" / f"large{number}.png", size=(200, 300))
    assert load_folder(tmp_path).shape == (3, 64, 64)


def test_one_channel_only_when_every_picture_is_grey_or_when_asked(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "cat" / "1.png", mode="L")
    picture(tmp_path / "train" / "cat" / "2.png", mode="1")
    assert load_folder(tmp_path).shape == (1, 5, 6)
    assert load_folder(tmp_path, FolderOptions(channels=3)).shape == (3, 5, 6)
    picture(tmp_path / "train" / "cat" / "3.png", mode="RGB")
    assert load_folder(tmp_path).shape == (3, 5, 6)
    assert load_folder(tmp_path, FolderOptions(channels=1)).shape == (1, 5, 6)


def test_the_cache_is_used_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = []
    build = cache._build
    monkeypatch.setattr(cache, "_build", lambda *args: (builds.append(args[1]), build(*args)))
    changed = tmp_path / "train" / "cat" / "1.png"
    pets(tmp_path)
    changed.write_bytes(changed.read_bytes().ljust(200, b"\0"))  # same size, other pixels below
    load_folder(tmp_path)
    load_folder(tmp_path)
    assert len(builds) == 1
    picture(changed, shade=2)
    changed.write_bytes(changed.read_bytes().ljust(200, b"\0"))
    os.utime(changed, (1, 1))
    assert load_folder(tmp_path).images[1, 0, 0, 0] == 2
    (tmp_path / "test" / "dog" / "1.png").unlink()
    assert len(load_folder(tmp_path)) == 9
    load_folder(tmp_path, FolderOptions(size=3))
    load_folder(tmp_path, FolderOptions(classes=("dog", "cat")))
    assert len(builds) == 5
    load_folder(tmp_path)
    assert len(builds) == 5
    kept = [path for path in (tmp_path / ".fedkeel-cache").iterdir() if path.is_dir()]
    assert len(kept) == 3  # one for each set of options; outdated ones are gone


def test_a_folder_that_cannot_be_written_gets_its_cache_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pets(tmp_path / "data")
    (tmp_path / "data" / ".fedkeel-cache").write_text("in the way, also of root")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert len(load_folder(tmp_path / "data")) == 10
    home = tmp_path / "temporary" / f"fedkeel-{os.getuid()}"
    assert home.stat().st_mode & 0o077 == 0
    assert len(list(home.glob("*/*/images.npy"))) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_a_temporary_folder_of_somebody_else_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pets(tmp_path / "data")
    (tmp_path / "data" / ".fedkeel-cache").write_text("in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    load_folder(tmp_path / "data")
    os.chown(tmp_path / f"fedkeel-{os.getuid()}", 12345, 12345)
    with pytest.raises(DataError, match="belongs to another user"):
        load_folder(tmp_path / "data")


def test_many_processes_build_one_cache(tmp_path: Path) -> None:
    pets(tmp_path, train=40)
    script = (
        "import sys; from pathlib import Path; from common.data.image_folder import load_folder\n"
        "data = load_folder(Path(sys.argv[1])); assert data.images[:].sum() == int(sys.argv[2])\n"
    )
    total = 3 * 30 * (sum(range(40)) * 2 + 4000 + 50 + 51 + 150 + 151)
    command = [sys.executable, "-c", script, str(tmp_path), str(total)]
    children = [subprocess.Popen(command) for _ in range(4)]
    assert [child.wait(timeout=60) for child in children] == [0] * 4
    inside = sorted(path.name for path in (tmp_path / ".fedkeel-cache").iterdir())
    assert len(inside) == 2
    assert inside[0] == ".lock"


def test_a_builder_that_was_killed_leaves_nothing_that_is_taken_for_a_cache(
    tmp_path: Path,
) -> None:
    pets(tmp_path)
    load_folder(tmp_path)
    (home,) = (path for path in (tmp_path / ".fedkeel-cache").iterdir() if path.is_dir())
    (home / "meta.json").unlink()
    home.rename(home.with_name(home.name + ".part"))
    assert len(load_folder(tmp_path)) == 10
    assert not list((tmp_path / ".fedkeel-cache").glob("*.part"))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"size": 0}, "size"),
        ({"channels": 2}, "channels"),
        ({"max_bad": 1.5}, "max_bad"),
        ({"classes": ("a", "a")}, "twice"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(DataError, match=word):
        FolderOptions(**options)  # type: ignore[arg-type]
