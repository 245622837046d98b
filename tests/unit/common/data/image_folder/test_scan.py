"""Which folders are classes: one numbering for the whole federation, and nothing guessed."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from common.data import Dataset, FolderOptions, load_folder
from common.errors import DataError
from tests.unit.common.data.image_folder.images import pets, picture

PETS = ("cat", "dog", "zebra")
SHADES = {"cat": 10, "dog": 120, "zebra": 230}  # every picture of a class has its shade


def client(root: Path, *names: str) -> Path:
    for name in names:
        picture(root / name / "1.png", SHADES[name])
    return root


def oracle(data: Dataset) -> list[int]:
    """What a perfect model would predict: the class list's place of each picture's shade."""
    shades = list(SHADES.values())
    return [shades.index(int(image[0, 0, 0])) for image in data.images]


def refusal(path: Path, classes: tuple[str, ...] | None = PETS) -> str:
    with pytest.raises(DataError) as caught:
        load_folder(path, FolderOptions(classes=classes))
    return str(caught.value)


# A public report of this bug: https://github.com/ultralytics/ultralytics/issues/13936
@pytest.mark.parametrize("part", ["", "train"])
@pytest.mark.parametrize("names", [("cat", "dog"), ("dog", "zebra"), ("zebra",), PETS])
def test_a_missing_class_shifts_nothing(tmp_path: Path, names: tuple[str, ...], part: str) -> None:
    client(tmp_path / part, *names)
    data = load_folder(tmp_path, FolderOptions(classes=PETS))
    assert data.classes == PETS
    assert data.labels.tolist() == oracle(data) == [PETS.index(name) for name in names]


def test_the_lists_order_counts_not_the_alphabet(tmp_path: Path) -> None:
    client(tmp_path, "cat", "dog")
    data = load_folder(tmp_path, FolderOptions(classes=("zebra", "dog", "cat")))
    assert_array_equal(data.labels, [1, 2])
    assert_array_equal(data.images[:, 0, 0, 0], [SHADES["dog"], SHADES["cat"]])


@pytest.mark.parametrize(
    ("name", "meant"),
    [("Cat", "cat"), ("CAT", "cat"), ("dog ", "dog"), (" dog ", "dog"), ("zebras", "zebra")],
)
def test_another_spelling_is_refused_with_what_was_meant(
    tmp_path: Path, name: str, meant: str
) -> None:
    picture(tmp_path / name / "1.png")
    first, _, rest = refusal(tmp_path).partition("\n")
    assert f'"{name}" (did you mean "{meant}"?)' in rest
    assert first.startswith("1 folders are no class of the federation")
    assert name.strip() + '"' not in first  # the first line may leave the client


def test_all_unknown_folders_are_told_at_once(tmp_path: Path) -> None:
    for name in ("Cat", "dog ", "thing"):
        picture(tmp_path / name / "1.png")
    told = refusal(tmp_path)
    assert told.startswith("3 folders")
    assert all(f'"{name}"' in told for name in ("Cat", "dog ", "thing"))


def test_what_is_hidden_or_empty_is_no_class_even_if_unknown(tmp_path: Path) -> None:
    client(tmp_path, "dog")
    picture(tmp_path / ".ipynb_checkpoints" / "1.png")
    picture(tmp_path / "dog" / ".ipynb_checkpoints" / "1.png")
    (tmp_path / "zebra").mkdir()
    (tmp_path / "unknown" / "deep").mkdir(parents=True)
    for place in ("", "dog", "unknown", "unknown/deep"):
        (tmp_path / place / ".DS_Store").write_bytes(b"x")
        (tmp_path / place / "Thumbs.db").write_bytes(b"x")
    data = load_folder(tmp_path, FolderOptions(classes=PETS))
    assert (data.labels.tolist(), data.skipped) == ([1], ())
    picture(tmp_path / "unknown" / "1.png")
    assert '"unknown"' in refusal(tmp_path)


def test_number_like_names_map_by_name(tmp_path: Path) -> None:
    for name in ("1", "2", "10"):
        picture(tmp_path / name / "1.png", int(name))
    numbers = tuple(str(n) for n in range(1, 11))
    data = load_folder(tmp_path, FolderOptions(classes=numbers))
    assert_array_equal(data.labels, [0, 1, 9])
    assert_array_equal(data.images[:, 0, 0, 0], [1, 2, 10])
    assert load_folder(tmp_path).classes == ("1", "2", "10")
    picture(tmp_path / "01" / "1.png")
    assert '"01" (did you mean "1"?)' in refusal(tmp_path, numbers)


def test_an_accent_is_one_letter_however_the_system_writes_it(tmp_path: Path) -> None:
    name = unicodedata.normalize("NFC", "b\u00e9b\u00e9")
    picture(tmp_path / unicodedata.normalize("NFD", name) / "1.png")
    picture(tmp_path / name / "2.png")
    data = load_folder(tmp_path, FolderOptions(classes=("cat", name)))
    assert_array_equal(data.labels, [1, 1])
    with pytest.raises(DataError, match="twice"):
        FolderOptions(classes=(name, unicodedata.normalize("NFD", name)))


def test_a_flat_folder_is_all_for_training_and_a_train_folder_makes_parts(tmp_path: Path) -> None:
    flat = load_folder(client(tmp_path / "flat", "cat", "dog"), FolderOptions(classes=PETS))
    assert (len(flat), flat.train_size) == (2, 2)
    parts = load_folder(pets(tmp_path / "parts", train=3, test=2), FolderOptions(classes=PETS))
    assert (len(parts), parts.train_size) == (10, 6)


@pytest.mark.parametrize("name", ["train", "test", "Test ", ".cat", "a/b", "", "a\nb"])
def test_a_class_that_no_folder_can_be_called_is_told(name: str) -> None:
    with pytest.raises(DataError, match="a class cannot be called"):
        FolderOptions(classes=("cat", name))


@pytest.mark.parametrize("name", ["Train", "TEST", "test"])
def test_a_part_without_train_is_not_taken_for_a_class(tmp_path: Path, name: str) -> None:
    picture(tmp_path / name / "cat" / "1.png")
    picture(tmp_path / "other" / "1.png")
    for classes in (None, PETS):
        assert f'"{name}", but no folder "train"' in refusal(tmp_path, classes)


def test_pictures_outside_of_class_folders_are_told_when_there_are_no_others(
    tmp_path: Path,
) -> None:
    picture(tmp_path / "1.png")
    assert "no file in any class folder" in refusal(tmp_path)
    assert f"{tmp_path}/<class>/<file>" in refusal(tmp_path)


@pytest.mark.parametrize("made", ["a file", "nothing"])
def test_a_folder_that_is_none_is_told(tmp_path: Path, made: str) -> None:
    path = tmp_path / "data"
    if made == "a file":
        path.write_text("x")
    assert "missing or is no folder" in refusal(path)


def test_links_are_followed_wherever_they_lead_but_not_below_a_class(tmp_path: Path) -> None:
    """The owner's links count as files; a link to a folder could lead back, and is listed."""
    picture(tmp_path / "elsewhere" / "1.png", 120)
    picture(tmp_path / "data" / "cat" / "1.png", 10)
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "cat" / "2.png").symlink_to(tmp_path / "elsewhere" / "1.png")
    (tmp_path / "data" / "cat" / "again").symlink_to(tmp_path / "data")
    data = load_folder(tmp_path / "data", FolderOptions(classes=PETS, max_bad=0.5))
    assert_array_equal(data.labels, [0, 0, 1])
    assert_array_equal(data.images[:, 0, 0, 0], [10, 120, 120])
    assert [name for name, _ in data.skipped] == ["cat/again"]
    picture(tmp_path / "elsewhere" / "1.png", 200)
    os.utime(tmp_path / "elsewhere" / "1.png", (1, 1))
    again = load_folder(tmp_path / "data", FolderOptions(classes=PETS, max_bad=0.5))
    assert_array_equal(again.images[:, 0, 0, 0], [10, 200, 200])


def test_file_names_may_be_anything_and_stay_on_one_line(tmp_path: Path) -> None:
    client(tmp_path, "cat")
    odd = ["a\nb.jpg", os.fsdecode(b"caf\xe9.jpg"), "\x1b[31mred.jpg"]
    for name in odd:
        picture(tmp_path / "cat" / "good.png", 10)
        (tmp_path / "cat" / "good.png").rename(tmp_path / "cat" / f"{name}.png")
        (tmp_path / "cat" / name).write_text("no picture")
    for _ in range(2):  # built, and from the cache
        data = load_folder(tmp_path, FolderOptions(classes=PETS, max_bad=1.0))
        assert len(data) == 4
        names = [name for name, _ in data.skipped]
        assert names == sorted(ascii(f"cat/{name}") for name in odd)
    told = refusal(tmp_path)
    assert told.isascii()
    assert len(told.splitlines()) == 5


def test_a_class_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    picture(tmp_path / odd / "1.png")
    assert r"caf\udce9" in refusal(tmp_path, None)
    assert r"caf\udce9" in refusal(tmp_path, PETS)


def test_own_pictures_look_the_same_to_the_model_at_every_client(tmp_path: Path) -> None:
    """Constants, not the client's statistics; and a cache of one use never feeds the other."""
    client(tmp_path, "cat")
    fixed = FolderOptions(classes=PETS, mean=0.5, std=0.25)
    for _ in range(2):
        assert load_folder(tmp_path, fixed).mean == (0.5,) * 3
        assert load_folder(tmp_path, fixed).std == (0.25,) * 3
        counted = load_folder(tmp_path, FolderOptions(classes=PETS))
        np.testing.assert_allclose(counted.mean, [10 / 255] * 3)
        assert counted.std == (1.0,) * 3
