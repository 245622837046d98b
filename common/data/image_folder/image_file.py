"""Decode one image file of any mode to uint8 pixels. Pillow is imported only when used.

Conversion of modes to 8 bits:

- 1-bit, palette, CMYK, YCbCr, ...: Pillow's conversion to grey or RGB.
- Transparency: the image is laid over white.
- 16-bit and 32-bit integers: divided by 4095 if no pixel is brighter (12-bit data in a 16-bit
  file), else by 65535, else by 2^31 - 1. The rule uses this image only, so every client decodes
  the same file to the same pixels. Negative values are refused.
- Floats: 0..1 or 0..255, depending on their range. Other ranges are refused.

Images are rotated by their EXIF orientation, as viewers show them. Of an animation only the first
image is used.
"""

import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BufferedReader, FileIO, UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 64 * 1024 * 1024  # a larger image is refused by its header
MAX_BYTES = 5 * MAX_PIXELS  # of a file; enough for uncompressed 32-bit pixels
LARGE = 4 * 1024 * 1024  # pixels; larger images are decoded one at a time, to bound the memory
GREY_MODES = {"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
ORIENTATION = 0x0112  # tag of EXIF
QUARTER_TURNS = range(5, 9)  # values of the orientation that exchange height and width
INTEGER_PEAKS = (4095, 65535, 2**31 - 1)
Size: TypeAlias = tuple[int, int]  # height, width


class UnusableImageError(Exception):
    """The reason why a file is skipped. Not raised outside of this package."""


@dataclass(frozen=True)
class Header:
    """Size and kind of an image, read without decoding its pixels."""

    size: Size
    grey: bool


@contextmanager
def quiet() -> Iterator[None]:
    """Turn Pillow's decompression-bomb warning into an error and silence its other warnings."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def read_header(path: Path) -> Header:
    """Return the size of an image as viewers show it, and its kind, without decoding it.

    Raises:
        UnusableImageError: not an image, not readable, or larger than MAX_PIXELS.
    """
    with _opened(path) as image:
        size = (image.height, image.width)
        turned = image.getexif().get(ORIENTATION, 1) in QUARTER_TURNS
        return Header(size[::-1] if turned else size, image.mode in GREY_MODES)


def read_pixels(path: Path, size: Size, *, grey: bool) -> NDArray[np.uint8]:
    """Decode an image to uint8 [1 or 3, height, width].

    An image of another size is scaled until it covers `size`, then cropped around its centre.

    Args:
        path: the file.
        size: height and width in pixels.
        grey: one channel instead of three.

    Raises:
        UnusableImageError: the file is truncated, or its values have an unknown scale.
    """
    from PIL import ImageOps

    with _opened(path) as image:
        image.draft(None, (2 * size[1], 2 * size[0]))  # a large JPEG, much faster
        with _one_large if image.width * image.height > LARGE else nullcontext():
            ImageOps.exif_transpose(image, in_place=True)
            plain = eight_bit(image)
            if (plain.height, plain.width) != size:
                plain = ImageOps.fit(plain, (size[1], size[0]))
        pixels = np.asarray(plain.convert("L" if grey else "RGB"))
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def eight_bit(image: "Image.Image") -> "Image.Image":
    """Return the image in mode L or RGB, by the rules at the top of this module."""
    from PIL import Image

    mode = "L" if image.mode in GREY_MODES else "RGB"
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_scaled(np.asarray(image)))
    if image.has_transparency_data:
        if image.mode != "RGBA":
            image = image.convert("RGBA")
        white = Image.new(mode, image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert(mode) if image.mode != mode else image


def _scaled(values: NDArray[Any]) -> NDArray[np.uint8]:
    integer = values.dtype.kind in "iu"
    low, high = float(values.min()), float(values.max())
    peaks = INTEGER_PEAKS if integer else (1, 255)
    peak = next((peak for peak in peaks if high <= peak), None)  # also None for NaN
    if peak is None or not low >= 0:
        expected = "0 or more" if integer else "0..1 or 0..255"
        raise UnusableImageError(f"values are {low:g}..{high:g}, expected {expected}")
    scaled = values.astype(np.float32)
    scaled *= 255 / peak
    return np.rint(scaled, out=scaled).astype(np.uint8)


_one_large = threading.Lock()


@contextmanager
def _opened(path: Path) -> Iterator["Image.Image"]:
    from PIL import Image, UnidentifiedImageError

    try:
        with _stream(path) as stream, Image.open(stream) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UnusableImageError(
                    f"{image.width} x {image.height} pixels, more than {MAX_PIXELS} are refused"
                )
            yield image
    except UnusableImageError:
        raise
    except UnidentifiedImageError:
        raise UnusableImageError("not an image, or of an unknown format") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UnusableImageError(f"more than {MAX_PIXELS} pixels are refused") from None
    except Exception as error:  # Pillow raises many kinds of errors on damaged files
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnusableImageError(" ".join(reason.split()) or type(error).__name__) from error


class _Unmapped(FileIO):
    """A file without a descriptor, so that Pillow and libtiff do not map it into memory.

    If a mapped file is truncated, reading it kills the process.
    """

    def fileno(self) -> int:
        """Refuse to give the descriptor."""
        raise UnsupportedOperation("fileno")


@contextmanager
def _stream(path: Path) -> Iterator[BufferedReader]:
    with _Unmapped(path, opener=_open_without_waiting) as file:
        status = os.fstat(FileIO.fileno(file))
        if not stat.S_ISREG(status.st_mode):
            raise UnusableImageError("not a regular file")
        if status.st_size == 0:
            raise UnusableImageError("the file is empty")
        if status.st_size > MAX_BYTES:
            raise UnusableImageError(
                f"{status.st_size / 1e6:.0f} MB, more than {MAX_BYTES / 1e6:.0f} are refused"
            )
        yield BufferedReader(file)


def _open_without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)  # does not wait for the writer of a pipe
