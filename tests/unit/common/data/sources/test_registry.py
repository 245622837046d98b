"""Named data sets load from disk without a network, and damage is told by file name."""

import gzip
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from common.data import dataset
from common.data.dataset import Dataset, pixel_statistics
from common.data.sources import CLASSES, SOURCES, data_root, load
from common.data.sources.idx import FASHION_MNIST, read_idx
from common.errors import DataError

NAMES = [file.name for file in FASHION_MNIST.files]
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_fashion(folder: Path, *, packed: bool = True) -> None:
    """Ten train and four test pictures whose pixels are their number."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(14, dtype=np.uint8)
    images = np.broadcast_to(numbers[:, None, None], (14, 28, 28)).copy()
    arrays = (images[:10], numbers[:10] % 10, images[10:], numbers[10:] % 10)
    for name, array in zip(NAMES, arrays, strict=True):
        content = idx_bytes(array)
        if packed:
            (folder / name).write_bytes(gzip.compress(content))
        else:
            (folder / name).with_suffix("").write_bytes(content)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


# A public report of this bug: https://github.com/NVIDIA/NVFlare/issues/1080
@pytest.mark.parametrize("place", ["", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.usefixtures("no_network")
def test_data_on_disk_need_no_network_and_no_write(
    tmp_path: Path, place: str, packed: bool
) -> None:
    write_fashion(tmp_path / place, packed=packed)
    before = sorted(tmp_path.rglob("*"))
    for path in (tmp_path / place, tmp_path):
        path.chmod(0o555)
    data = load("fashion-mnist", tmp_path)
    assert data.images.shape == (14, 1, 28, 28)
    assert_array_equal(data.images[:, 0, 3, 5], np.arange(14))
    assert_array_equal(data.labels, np.arange(14) % 10)
    assert data.train_size == 10
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / place).chmod(0o755)
    tmp_path.chmod(0o755)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason=f"no Fashion-MNIST in {DEBIAN}")
@pytest.mark.usefixtures("no_network")
def test_the_real_fashion_mnist(tmp_path: Path) -> None:
    data = load("fashion-mnist", tmp_path)
    assert data.images.shape == (70000, 1, 28, 28)
    assert data.shape == (1, 28, 28)
    assert_array_equal(np.bincount(data.labels[: data.train_size]), [6000] * 10)
    assert_array_equal(np.bincount(data.labels), [7000] * 10)
    mean, std = pixel_statistics(data.images[: data.train_size])
    assert_allclose([*mean, *std], [*data.mean, *data.std], atol=1e-4)


def test_digits_need_nothing_and_use_the_whole_grey_range() -> None:
    data = load("digits")
    assert data.images.shape == (1797, 1, 8, 8)
    assert (data.images.min(), data.images.max()) == (0, 255)
    assert data.classes == tuple("0123456789")
    assert not data.flip
    train = data.images[: data.train_size] / 255
    assert_allclose([data.mean[0], data.std[0]], [train.mean(), train.std()])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-1], ["54", "55"]),
        (lambda content: content + b"x", ["56", "55"]),
        (lambda content: content[:6], ["6 bytes", "expected"]),
        (lambda content: b"", ["nothing", "000008"]),
        (lambda content: b"\x00\x00\x0d\x03" + content[4:], ["00000d03", "000008"]),
        (lambda content: gzip.compress(content)[:-9], ["cannot be read"]),
        (lambda content: b"\x1f\x8bnot gzip at all", ["cannot be read"]),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, damage: Any, words: list[str]) -> None:
    path = tmp_path / "some-images-idx3-ubyte"
    content = idx_bytes(np.zeros((1, 3, 13), dtype=np.uint8))  # 4 + 12 + 39 = 55 bytes
    path.write_bytes(damage(content))
    with pytest.raises(DataError) as caught:
        read_idx(path)
    assert all(word in str(caught.value) for word in [str(path), *words]), caught.value


def test_images_and_labels_that_do_not_match_are_refused(tmp_path: Path) -> None:
    write_fashion(tmp_path)
    (tmp_path / NAMES[1]).write_bytes(idx_bytes(np.zeros(9, dtype=np.uint8)))
    with pytest.raises(DataError, match="train-images"):
        load("fashion-mnist", tmp_path)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(DataError, match=r'did you mean "cifar10".*fashion-mnist.*folder:PATH'):
        load("cifar-10")


def test_the_data_directory_is_the_argument_then_the_environment_then_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDKEEL_DATA", raising=False)
    assert data_root(None) == Path("data")
    monkeypatch.setenv("FEDKEEL_DATA", "/somewhere")
    assert data_root(None) == Path("/somewhere")
    assert data_root(Path("here")) == Path("here")


def test_a_data_set_that_contradicts_itself_is_refused() -> None:
    images = np.zeros((3, 1, 2, 2), dtype=np.uint8)
    with pytest.raises(DataError) as caught:
        Dataset("mine", images, np.array([0, 5]), ("a", "b"), 4, (0.5, 0.5), (1.0,))
    message = str(caught.value)
    assert "3 images but 2 labels" in message
    assert "labels are 0..5, expected 0..1" in message
    assert "train part of 4" in message
    assert "1 channels" in message


def test_pixel_statistics_equal_the_slow_way_and_never_divide_by_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataset, "PIXELS", 1000)  # counted in pieces
    images = np.random.default_rng(0).integers(0, 256, (5000, 2, 3, 3)).astype(np.uint8)
    images[:, 1] = 77
    mean, std = pixel_statistics(images)
    assert_allclose(mean, (images / 255).mean(axis=(0, 2, 3)))
    assert_allclose(std, [(images[:, 0] / 255).std(), 1.0])


def test_the_classes_of_every_source_are_known_before_it_is_loaded() -> None:
    assert CLASSES.keys() == SOURCES.keys()
    assert CLASSES["digits"] == load("digits").classes
