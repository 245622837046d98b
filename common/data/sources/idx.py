"""Data sets in IDX files, the format of MNIST and Fashion-MNIST.

torchvision is not used: it reads only unpacked files, and it writes where it reads.
"""

import gzip
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.data.dataset import Dataset
from common.data.sources.download import RemoteFile, fetch, where_to_put
from common.errors import DataError

GZIP = b"\x1f\x8b"
UINT8 = 8  # IDX's code for unsigned bytes


@dataclass(frozen=True)
class IdxSource:
    """A data set of four IDX files.

    Attributes:
        name: name of the data set.
        files: gzipped train images, train labels, test images and test labels.
        places: folders with the files, absolute or below the data directory.
        classes: class names.
        mean: mean of the pixels scaled to 0..1.
        std: standard deviation of the pixels scaled to 0..1.
    """

    name: str
    files: tuple[RemoteFile, RemoteFile, RemoteFile, RemoteFile]
    places: tuple[str, ...]
    classes: tuple[str, ...]
    mean: float
    std: float

    def load(self, root: Path, *, download: bool = True) -> Dataset:
        """Read the four files from the first place that has all of them, else download them.

        Raises:
            DataError: a file is missing or damaged. The message names it.
        """
        home = root / self.name
        paths = self._find(root)
        if paths is None:
            if not download:
                raise DataError(f"{self.name} is not on disk; {where_to_put(self.files, home)}")
            fetch(self.files, home)
            paths = [home / file.name for file in self.files]
        train, train_labels, test, test_labels = map(read_idx, paths)
        for images, labels, path in (
            (train, train_labels, paths[0]),
            (test, test_labels, paths[2]),
        ):
            if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
                raise DataError(
                    f"{path} holds images {images.shape} and its labels {labels.shape}; expected "
                    "[n, height, width] and [n]: replace the files"
                )
        return Dataset(
            name=self.name,
            images=np.concatenate([train, test])[:, None],
            labels=np.concatenate([train_labels, test_labels]).astype(np.int64),
            classes=self.classes,
            train_size=len(train),
            mean=(self.mean,),
            std=(self.std,),
        )

    def _find(self, root: Path) -> list[Path] | None:
        for place in self.places:
            names = [root / place / file.name for file in self.files]
            present = [p for name in names for p in (name, name.with_suffix("")) if p.is_file()]
            if len({path.name.removesuffix(".gz") for path in present}) == len(names):
                return [next(p for p in (n, n.with_suffix("")) if p in present) for n in names]
        return None


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array in one IDX file of unsigned bytes, plain or gzipped.

    Raises:
        DataError: the file is not IDX, has another length than its header says, or is a damaged
            archive.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == GZIP
            file.seek(0)
            content = (gzip.GzipFile(fileobj=file) if zipped else file).read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; replace the file") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, UINT8]):
        raise DataError(
            f"{path} begins with {content[:4].hex() or 'nothing'}, expected 000008.. "
            "(IDX, unsigned bytes); replace the file"
        )
    start = 4 + 4 * content[3]
    shape = tuple(
        int(size) for size in np.frombuffer(content[4:start].ljust(start - 4, b"\0"), ">u4")
    )
    if len(content) != start + prod(shape):
        raise DataError(
            f"{path} holds {len(content)} bytes, expected {start + prod(shape)} for shape "
            f"{shape}; replace the file"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


FASHION_MNIST = IdxSource(
    name="fashion-mnist",
    files=tuple(
        RemoteFile(name, f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}", md5)
        for name, md5 in (
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        )
    ),  # type: ignore[arg-type]
    places=(
        "",
        "fashion-mnist",
        "FashionMNIST/raw",  # torchvision's place
        "/usr/share/datasets/fashion-mnist",  # Debian's package dataset-fashion-mnist
    ),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    mean=0.2860,
    std=0.3530,
)
