"""Folders whose layout would be misread are refused, and files that are not used are counted."""

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.data import FolderOptions, inspect_folder, load_folder
from common.data.sources import load
from common.errors import DataError
from tests.unit.common.data.image_folder.images import pets, picture


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(f"folder:{path}", None)
    return str(caught.value)


def test_one_folder_too_many_above_the_classes_is_refused(tmp_path: Path) -> None:
    """It gave one class and 100 % accuracy: https://github.com/fastai/fastai/issues/1552."""
    for name in ("cat", "dog"):
        picture(tmp_path / "animals-v2" / name / "1.png")
    assert "hold the same 2 folders each" in refusal(tmp_path)
    assert "animals-v2 with cat, dog" in refusal(tmp_path)
    assert load_folder(tmp_path / "animals-v2").classes == ("cat", "dog")


@pytest.mark.parametrize("part", ["", "train"])
def test_a_single_class_is_refused_for_a_whole_federation(tmp_path: Path, part: str) -> None:
    picture(tmp_path / part / "cat" / "1.png")
    assert "all images are in one class" in refusal(tmp_path)
    assert len(load_folder(tmp_path, FolderOptions(classes=("cat", "dog")))) == 1


@pytest.mark.parametrize(
    "parts", [("Training", "Testing"), ("training", "validation"), ("fold1", "fold2", "fold3")]
)
def test_parts_with_other_names_are_not_taken_for_classes(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    for part in parts:
        for name in ("cat", "dog"):
            picture(tmp_path / part / name / "1.png")
    assert "name the parts train and test" in refusal(tmp_path)


def test_classes_two_levels_down_are_refused(tmp_path: Path) -> None:
    for part in ("seg_train", "seg_test"):
        for name in ("sea", "street"):
            picture(tmp_path / part / part / name / "1.png")
    assert "the classes seem to be further down" in refusal(tmp_path)


@pytest.mark.parametrize("inside", ["images", "p{}"])
def test_class_folders_with_one_folder_or_with_other_folders_are_used(
    tmp_path: Path, inside: str
) -> None:
    for number, name in enumerate(("cat", "dog")):
        for file in (1, 2):
            picture(tmp_path / name / inside.format(10 * number + file) / f"{file}.png")
    assert len(load(f"folder:{tmp_path}", None)) == 4


def test_a_folder_beside_train_is_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """45 of 165 images were left out: https://github.com/huggingface/datasets/issues/4839."""
    pets(tmp_path)
    for number in range(3):
        picture(tmp_path / "val" / "cat" / f"{number}.png")
    with caplog.at_level(logging.WARNING):
        load_folder(tmp_path)
    assert 'not used: 3 files in the folder "val" beside train' in caplog.text
    assert inspect_folder(tmp_path).left_out == {'files in the folder "val" beside train': 3}


@pytest.mark.parametrize("suffix", [".json", ".TXT", ".xml"])
def test_files_that_are_no_images_are_counted_apart_from_bad_images(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They were refused as "120 of 240 bad". OpenNeuro has a like report, issue 2520."""
    pets(tmp_path)
    for path in list(tmp_path.rglob("*.png")):
        path.with_suffix(suffix).write_text("{}")
    with caplog.at_level(logging.WARNING):
        data = load_folder(tmp_path)
    assert (len(data), data.skipped) == (10, ())
    assert f"not used: 10 {suffix.lower()} files" in caplog.text


def test_companions_of_macos_are_left_out_like_other_traces_of_file_managers(
    tmp_path: Path,
) -> None:
    pets(tmp_path)
    for path in list(tmp_path.rglob("*.png")):
        path.with_name(f"._{path.name}").write_bytes(b"\x00\x05\x16\x07")
    data = load_folder(tmp_path)
    assert (len(data), data.skipped) == (10, ())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_with_an_exif_orientation_gives_the_pixels_of_the_upright_file(
    tmp_path: Path, orientation: int
) -> None:
    """All were cropped to the middle: https://github.com/pytorch/vision/issues/7977."""
    from PIL import ImageOps

    pixels = np.random.default_rng(0).integers(0, 256, (2, 12, 6, 3)).astype(np.uint8)
    for number, array in enumerate(pixels):
        image = Image.fromarray(array)
        exif = image.getexif()
        exif[0x0112] = orientation
        turned = tmp_path / "turned" / str(number) / "1.png"
        upright = tmp_path / "upright" / str(number) / "1.png"
        for path in (turned, upright):
            path.parent.mkdir(parents=True)
        image.save(turned, exif=exif)
        ImageOps.exif_transpose(Image.open(turned)).save(upright)
    one, other = load_folder(tmp_path / "turned"), load_folder(tmp_path / "upright")
    assert one.images.shape == other.images.shape
    assert np.array_equal(one.images, other.images)
