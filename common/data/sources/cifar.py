"""CIFAR-10 and CIFAR-100, from their binary or their Python archives, packed or unpacked.

The files of the Python archives are pickles. Their MD5 sum is checked first. The unpickler can only
build arrays, lists, dicts, numbers and strings. torchvision is not used: it does not read the
binary files, and it unpickles without such a limit.
"""

import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import Dataset
from common.data.sources.download import RemoteFile, fetch, md5_of, where_to_put
from common.errors import DataError

PIXELS = 3 * 32 * 32
Batch: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]  # pixels [n, 3072], labels [n]


@dataclass(frozen=True)
class BinaryBatch:
    """A file of records: `label_bytes` labels, of which the last is used, then the pixels."""

    name: str
    records: int
    label_bytes: int = 1

    def read(self, content: bytes) -> Batch:
        """Return pixels and labels. Raises ValueError if the file has the wrong size."""
        width = self.label_bytes + PIXELS
        if len(content) != self.records * width:
            raise ValueError(f"{len(content)} bytes, expected {self.records * width}")
        rows = np.frombuffer(content, np.uint8).reshape(-1, width)
        return rows[:, self.label_bytes :], rows[:, self.label_bytes - 1].astype(np.int64)


@dataclass(frozen=True)
class PickledBatch:
    """A pickled dict with pixels under "data" and the labels under `label_key`."""

    name: str
    md5: str
    label_key: str = "labels"

    def read(self, content: bytes) -> Batch:
        """Return pixels and labels. Raises ValueError if the MD5 sum differs."""
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if md5 != self.md5:
            raise ValueError(f"MD5 {md5}, expected {self.md5}")
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        return batch["data"], np.array(batch[self.label_key], dtype=np.int64)


@dataclass(frozen=True)
class Edition:
    """One published form of a data set: its archive, the folder in the archive, and the files."""

    archive: RemoteFile
    folder: str
    train: tuple[BinaryBatch | PickledBatch, ...]
    test: tuple[BinaryBatch | PickledBatch, ...]


@dataclass(frozen=True)
class CifarSource:
    """A CIFAR data set. A download fetches the first edition."""

    name: str
    editions: tuple[Edition, ...]
    classes: tuple[str, ...]

    def load(self, root: Path, *, download: bool = True) -> Dataset:
        """Read the first edition found in root or root/<name>, else download one.

        Raises:
            DataError: the files are missing and cannot be downloaded, or a file is damaged.
        """
        home = root / self.name
        for place in (root, home):
            for edition in self.editions:
                if all((place / edition.folder / f.name).is_file() for f in _files(edition)):
                    return self._build(edition, _unpacked(place / edition.folder))
        for place in (root, home):
            for edition in self.editions:
                if (place / edition.archive.name).is_file():
                    return self._build(edition, _packed(place, edition))
        archive = self.editions[0].archive
        if not download:
            raise DataError(f"{self.name} is not on disk; {where_to_put([archive], home)}")
        fetch([archive], home)
        return self._build(self.editions[0], _packed(home, self.editions[0]))

    def _build(self, edition: Edition, read: Callable[[str], tuple[str, bytes]]) -> Dataset:
        batches = list(_batches(edition, read))
        pixels, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        return Dataset(
            name=self.name,
            images=pixels.reshape(-1, 3, 32, 32),
            labels=labels,
            classes=self.classes,
            train_size=sum(len(labels) for _, labels in batches[: len(edition.train)]),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
        )


def _files(edition: Edition) -> tuple[BinaryBatch | PickledBatch, ...]:
    return edition.train + edition.test


def _batches(edition: Edition, read: Callable[[str], tuple[str, bytes]]) -> Iterator[Batch]:
    for file in _files(edition):
        where, content = read(file.name)
        try:
            pixels, labels = file.read(content)
            if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
                raise ValueError(f"pixels {pixels.dtype} {pixels.shape}, {len(labels)} labels")
        except (ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
            raise DataError(f"{where} is damaged: {error}; replace it") from error
        yield pixels, labels


def _unpacked(folder: Path) -> Callable[[str], tuple[str, bytes]]:
    def read(name: str) -> tuple[str, bytes]:
        try:
            return str(folder / name), (folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{folder / name} cannot be read: {error}") from error

    return read


def _packed(place: Path, edition: Edition) -> Callable[[str], tuple[str, bytes]]:
    """Check the archive's MD5 sum and read its files into memory. Nothing is unpacked on disk."""
    path = place / edition.archive.name
    names = {f"{edition.folder}/{file.name}": file.name for file in _files(edition)}
    try:
        md5 = md5_of(path)
        if md5 != edition.archive.md5:
            raise DataError(
                f"{path} is damaged: {path.stat().st_size} bytes with MD5 {md5}, expected "
                f"{edition.archive.md5}; delete it and {where_to_put([edition.archive], place)}"
            )
        contents = {}
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name in names and (handle := archive.extractfile(member)):
                    contents[names[member.name]] = handle.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read: {error}; replace it") from error

    def read(name: str) -> tuple[str, bytes]:
        if name not in contents:
            raise DataError(f"{path} has no {edition.folder}/{name}; replace it")
        return f"{path}:{edition.folder}/{name}", contents[name]

    return read


_REBUILD = np.empty(0).__reduce__()[0]  # the function that builds an array from NumPy's pickles
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return _ALLOWED[module, name]


_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_URL = "https://www.cs.toronto.edu/~kriz"


def _archive(name: str, md5: str) -> RemoteFile:
    return RemoteFile(name, f"{_URL}/{name}", md5)


CIFAR10 = CifarSource(
    name="cifar10",
    editions=(
        Edition(
            _archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
            folder="cifar-10-batches-bin",
            train=tuple(BinaryBatch(f"data_batch_{i}.bin", 10_000) for i in range(1, 6)),
            test=(BinaryBatch("test_batch.bin", 10_000),),
        ),
        Edition(
            _archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
            folder="cifar-10-batches-py",
            train=(
                PickledBatch("data_batch_1", "c99cafc152244af753f735de768cd75f"),
                PickledBatch("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                PickledBatch("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                PickledBatch("data_batch_4", "634d18415352ddfa80567beed471001a"),
                PickledBatch("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ),
            test=(PickledBatch("test_batch", "40351d587109b95175f43aff81a1287e"),),
        ),
    ),
    classes=tuple(_CIFAR10_CLASSES.split()),
)

CIFAR100 = CifarSource(
    name="cifar100",
    editions=(
        Edition(
            _archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
            folder="cifar-100-binary",
            train=(BinaryBatch("train.bin", 50_000, label_bytes=2),),
            test=(BinaryBatch("test.bin", 10_000, label_bytes=2),),
        ),
        Edition(
            _archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
            folder="cifar-100-python",
            train=(PickledBatch("train", "16019d7e3df5f24257cddd939b257f8d", "fine_labels"),),
            test=(PickledBatch("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", "fine_labels"),),
        ),
    ),
    classes=tuple(_CIFAR100_CLASSES.split()),
)
