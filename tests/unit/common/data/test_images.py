"""FLB-22: no picture is silently white, black or clipped, whatever its mode."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from common.data import images
from common.data.images import UnusablePictureError, read_header, read_pixels

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
    with pytest.raises(UnusablePictureError) as caught:
        read(path)
    assert reason in str(caught.value)


def test_negative_integers_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(np.full((SIDE, SIDE), -5, np.int32)), "ct.tif")
    with pytest.raises(UnusablePictureError, match="expected 0 or more"):
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
