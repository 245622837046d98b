"""No picture of any mode is silently white, black or clipped.

It was in https://github.com/pytorch/vision/issues/2218.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from common.data.image_batches import normalise
from common.data.image_folder import FolderOptions, load_folder
from common.data.image_folder import image_file as images
from common.data.image_folder.image_file import UnusableImageError, read_header, read_pixels
from tests.unit.common.data.image_folder.images import pipe

SIDE = 64
RAMP = np.tile(np.linspace(0, 1, SIDE), (SIDE, 1))  # 0 at the left, 1 at the right; mean 0.5


def saved(folder: Path, image: Image.Image, name: str) -> Path:
    image.save(folder / name)
    return folder / name


def eight_bit(scale: float = 255) -> np.ndarray:
    return np.rint(RAMP * scale).astype(np.uint8)


def read(path: Path, *, grey: bool = False) -> np.ndarray:
    pixels = read_pixels(path, (SIDE, SIDE), grey=grey)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (1 if grey else 3, SIDE, SIDE)
    return pixels / 255


@pytest.mark.parametrize("grey", [True, False])
@pytest.mark.parametrize(
    ("image", "name"),
    [
        (Image.fromarray(np.rint(RAMP * 4095).astype(np.uint16)), "12.png"),
        (Image.fromarray(np.rint(RAMP * 65535).astype(np.uint16)), "16.png"),
        (Image.fromarray(np.rint(RAMP * 65535).astype(np.uint16)), "16.tif"),
        (Image.fromarray(np.rint(RAMP * (2**31 - 1)).astype(np.int32)), "32.tif"),
        (Image.fromarray(RAMP.astype(np.float32)), "unit.tif"),
        (Image.fromarray((RAMP * 255).astype(np.float32)), "wide.tif"),
        (Image.fromarray(eight_bit()), "8.png"),
        (Image.fromarray(eight_bit()).convert("RGB"), "rgb.png"),
        (Image.fromarray(eight_bit()).convert("P"), "palette.png"),
        (Image.fromarray(eight_bit()).convert("LA"), "opaque.png"),
    ],
)
def test_a_ramp_stays_a_ramp(tmp_path: Path, image: Image.Image, name: str, grey: bool) -> None:
    pixels = read(saved(tmp_path, image, name), grey=grey)
    assert_allclose(pixels, np.broadcast_to(RAMP, pixels.shape), atol=1.5 / 255)


def test_cmyk_stays_a_ramp_within_the_loss_of_jpeg(tmp_path: Path) -> None:
    image = Image.fromarray(eight_bit()).convert("RGB").convert("CMYK")
    pixels = read(saved(tmp_path, image, "cmyk.jpg"))
    assert_allclose(pixels, np.broadcast_to(RAMP, pixels.shape), atol=0.06)


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    image = Image.fromarray(RAMP > 0.5)
    pixels = read(saved(tmp_path, image, "1.png"))
    assert_allclose(pixels, np.broadcast_to(RAMP > 0.5, pixels.shape))


@pytest.mark.parametrize("name", ["rgba.png", "rgba.webp"])
def test_transparency_lies_over_white(tmp_path: Path, name: str) -> None:
    """Black under growing opacity is a ramp from white to black."""
    layers = np.zeros((SIDE, SIDE, 4), dtype=np.uint8)
    layers[..., 3] = eight_bit()
    image = Image.fromarray(layers)
    image.save(tmp_path / name, lossless=True)
    pixels = read(tmp_path / name)
    assert_allclose(pixels, np.broadcast_to(1 - RAMP, pixels.shape), atol=1.5 / 255)


def test_grey_with_transparency_stays_grey(tmp_path: Path) -> None:
    layers = np.stack([np.zeros_like(eight_bit()), eight_bit()], axis=-1)
    path = saved(tmp_path, Image.fromarray(layers), "la.png")
    assert read_header(path).grey
    assert_allclose(read(path, grey=True)[0], 1 - RAMP, atol=1.5 / 255)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (RAMP - 0.5, "-0.5..0.5, expected 0..1 or 0..255"),
        (RAMP * 1000, "0..1000, expected 0..1 or 0..255"),
        (np.where(RAMP > 0.9, np.nan, RAMP), "nan"),
    ],
)
def test_floats_without_an_agreed_scale_are_refused(
    tmp_path: Path, values: np.ndarray, reason: str
) -> None:
    path = saved(tmp_path, Image.fromarray(values.astype(np.float32)), "odd.tif")
    with pytest.raises(UnusableImageError) as caught:
        read(path)
    assert reason in str(caught.value)


def test_negative_integers_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(np.full((SIDE, SIDE), -5, np.int32)), "ct.tif")
    with pytest.raises(UnusableImageError, match="expected 0 or more"):
        read(path)


def test_another_size_is_covered_and_cropped_around_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((32, 96, 3), dtype=np.uint8)
    wide[:, 32:64] = 255  # the middle square
    pixels = read_pixels(saved(tmp_path, Image.fromarray(wide), "w.png"), (16, 16), grey=False)
    assert pixels.shape == (3, 16, 16)
    assert pixels[:, :, 2:-2].min() > 250


@pytest.mark.parametrize(("large", "most"), [(0, 1), (1 << 20, 4)])
def test_large_pictures_are_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, most: int
) -> None:
    path = saved(tmp_path, Image.fromarray(eight_bit()), "a.png")
    eight, inside, seen = images.eight_bit, threading.Semaphore(4), []

    def slow(image: Image.Image) -> Image.Image:
        with inside:
            seen.append(4 - inside._value)
            time.sleep(0.05)
            return eight(image)

    monkeypatch.setattr(images, "eight_bit", slow)
    monkeypatch.setattr(images, "LARGE", large)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, [path] * 4))
    assert max(seen) <= most
    assert most == 1 or max(seen) > 1


@pytest.mark.parametrize(
    ("tag", "corner"), [(1, (0, 0)), (3, (-1, -1)), (6, (0, -1)), (8, (-1, 0))]
)
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_picture_is_turned_as_its_camera_was_held(
    tmp_path: Path, suffix: str, tag: int, corner: tuple[int, int]
) -> None:
    """What is stored at the top left is seen elsewhere: 3 upside down, 6 right, 8 bottom left."""
    stored = np.zeros((SIDE, SIDE), dtype=np.uint8)
    stored[:16, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = tag
    Image.fromarray(stored).save(tmp_path / f"a.{suffix}", exif=exif)
    assert read(tmp_path / f"a.{suffix}", grey=True)[0][corner] > 0.9


def test_a_large_jpeg_at_less_detail_looks_the_same(tmp_path: Path) -> None:
    waves = np.sin(np.linspace(0, 20, 2000)) * 100 + 128
    image = Image.fromarray(np.tile(waves, (1500, 1)).astype(np.uint8)).convert("RGB")
    jpeg = read_pixels(saved(tmp_path, image, "a.jpg"), (60, 80), grey=False)
    exact = read_pixels(saved(tmp_path, image, "a.png"), (60, 80), grey=False)
    assert_allclose(jpeg.astype(int), exact, atol=3)


# A public report of this bug: https://github.com/pytorch/vision/issues/138
@pytest.mark.parametrize("read_it", [read_header, read])
def test_a_pipe_is_refused_at_once(tmp_path: Path, read_it: Callable[[Path], object]) -> None:
    begin = time.monotonic()
    with (
        pipe(tmp_path / "a.jpg"),
        pytest.raises(UnusableImageError, match="not a regular file"),
    ):
        read_it(tmp_path / "a.jpg")
    assert time.monotonic() - begin < 4


@pytest.mark.parametrize("kind", ["socket", "device", "folder"])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jpg"
    with socket.socket(socket.AF_UNIX) as server:
        make = {
            "socket": lambda: server.bind(str(path)),
            "device": lambda: path.symlink_to("/dev/zero"),
            "folder": path.mkdir,
        }
        make[kind]()
        for read_it in (read_header, read):
            with pytest.raises(UnusableImageError):
                read_it(path)


def test_a_file_of_many_bytes_is_refused_unread(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(eight_bit()), "a.tif")
    os.truncate(path, 1 << 40)  # a hole, which takes no room
    with pytest.raises(UnusableImageError, match="1099512 MB, more than 336 are refused"):
        read(path)


@pytest.mark.parametrize("suffix", ["bmp", "tif"])
def test_a_file_that_changes_meanwhile_is_a_picture_or_a_reason(
    tmp_path: Path, suffix: str
) -> None:
    """In kinds that Pillow or libtiff would map into memory, where a cut file ends the process."""
    path, whole = tmp_path / f"a.{suffix}", tmp_path / f"whole.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024)).astype(np.uint8)
    options = {"compression": "tiff_lzw"} if suffix == "tif" else {}
    Image.fromarray(noise).save(whole, **options)
    content, over = whole.read_bytes(), threading.Event()

    def meddle() -> None:
        while not over.is_set():
            path.write_bytes(content)
            time.sleep(0.001)
            os.truncate(path, 5000)
            time.sleep(0.001)

    thread = threading.Thread(target=meddle)
    thread.start()
    seen = set()
    try:
        for _ in range(100):
            try:
                seen.add(read_pixels(path, (SIDE, SIDE), grey=True).shape)
            except UnusableImageError:
                seen.add("refused")
    finally:
        over.set()
        thread.join()
    assert seen <= {(1, SIDE, SIDE), "refused"}


# A public report of this bug: https://github.com/pytorch/vision/issues/2218
def test_the_three_ramps_have_mean_one_half_as_the_model_sees_them(tmp_path: Path) -> None:
    """12 bits in a 16-bit file, all 16 bits, and floats: float32, three channels, finite."""
    ramps = {
        "12.png": np.rint(RAMP * 4095).astype(np.uint16),
        "16.png": np.rint(RAMP * 65535).astype(np.uint16),
        "float.tif": RAMP.astype(np.float32),
    }
    for name, values in ramps.items():
        place = tmp_path / "train" / "ramp"
        place.mkdir(parents=True, exist_ok=True)
        saved(place, Image.fromarray(values), name)
    data = load_folder(tmp_path, FolderOptions(channels=3))
    assert (len(data), data.skipped) == (3, ())
    seen = normalise(torch.from_numpy(np.array(data.images)), (0.0,) * 3, (1.0,) * 3)
    assert seen.dtype == torch.float32
    assert seen.shape == (3, 3, SIDE, SIDE)
    assert_allclose(seen.mean(dim=(1, 2, 3)), 0.5, atol=0.02)
    assert_allclose(seen.amin(dim=(1, 2, 3)), 0, atol=0.01)
    assert_allclose(seen.amax(dim=(1, 2, 3)), 1, atol=0.01)
