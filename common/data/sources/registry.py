"""The data sets that FedKeel knows by name."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from common.data.dataset import Dataset, pixel_statistics
from common.data.image_folder import FolderOptions, load_folder
from common.data.image_folder.layout_check import refuse_single_class
from common.data.sources.cifar import CIFAR10, CIFAR100
from common.data.sources.idx import FASHION_MNIST
from common.errors import DataError, did_you_mean

FOLDER = "folder:"
OWN = "own"  # each client's own folder of images
DIGITS_TRAIN = 1437  # the first four fifths: the source has no test part

CLASSES: Mapping[str, tuple[str, ...]] = {  # of the data sets below, known before they are loaded
    "digits": tuple("0123456789"),
    "fashion-mnist": FASHION_MNIST.classes,
    "cifar10": CIFAR10.classes,
    "cifar100": CIFAR100.classes,
}


def load(
    name: str,
    root: Path | None = None,
    *,
    download: bool = True,
    folder: FolderOptions | None = None,
) -> Dataset:
    """Load a data set.

    Args:
        name: a key of SOURCES, or folder:PATH for images in PATH/train/<class>/ and
            PATH/test/<class>/.
        root: the directory of files on disk and of downloads. None is the environment variable
            FEDKEEL_DATA, else ./data.
        download: whether missing files are downloaded.
        folder: options for folder:PATH.

    Raises:
        DataError: the name is unknown, or files are missing or damaged. The message says which
            files to put where.
    """
    if name.startswith(FOLDER):
        path = Path(name.removeprefix(FOLDER)).expanduser()
        data = load_folder(path, folder)
        refuse_single_class(path, data.classes)
        return data
    if name not in SOURCES:
        raise DataError(
            f'no data set is named "{name}"{did_you_mean(name, SOURCES)}; known: '
            f"{', '.join(SOURCES)}, {FOLDER}PATH"
        )
    return SOURCES[name](data_root(root), download)


def data_root(root: Path | None) -> Path:
    """Return the data directory: `root`, else $FEDKEEL_DATA, else ./data."""
    return root or Path(os.environ.get("FEDKEEL_DATA") or "data")


def _digits(root: Path, download: bool) -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()  # comes with scikit-learn; values 0..16
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    mean, std = pixel_statistics(images[:DIGITS_TRAIN])
    return Dataset(
        name="digits",
        images=images,
        labels=digits.target.astype(np.int64),
        classes=CLASSES["digits"],
        train_size=DIGITS_TRAIN,
        mean=mean,
        std=std,
        flip=False,
    )


SOURCES: Mapping[str, Callable[[Path, bool], Dataset]] = {
    "digits": _digits,
    "fashion-mnist": lambda root, download: FASHION_MNIST.load(root, download=download),
    "cifar10": lambda root, download: CIFAR10.load(root, download=download),
    "cifar100": lambda root, download: CIFAR100.load(root, download=download),
}
