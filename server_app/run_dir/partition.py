"""Who holds which classes: for runs that deal a data set, which alone know it."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from common.config import RunConfig
from common.errors import DataError
from common.federated_data import dataset_of, splits_of
from common.io.files import atomic_write
from common.io.typed_json import Int64, JsonTypeError, from_json
from common.types import ClientId

logger = logging.getLogger("flwr")
PARTITION = "partition.json"


@dataclass(frozen=True)
class Partition:
    """The training samples of each client by class.

    Attributes:
        classes: their names, C of them.
        clients: the counts [C] of each client.
    """

    classes: list[str]
    clients: dict[ClientId, list[Int64]]


def partition_of(config: RunConfig) -> Partition:
    """Count what each client of a dealt data set trains on.

    Raises:
        DataError: the data set cannot be loaded, or not be dealt so.
    """
    data = dataset_of(config.data)
    splits = splits_of(config.data, config.clients, config.seed)
    counts = [np.bincount(data.labels[s.train], minlength=len(data.classes)) for s in splits]
    return Partition(list(data.classes), {str(k): c.tolist() for k, c in enumerate(counts)})


def note_partition(run_dir: Path, config: RunConfig) -> None:
    """Write `partition.json`; a machine that has not the data goes on without."""
    try:
        text = json.dumps(asdict(partition_of(config))) + "\n"
        with atomic_write(run_dir / PARTITION) as file:
            file.write(text.encode())
    except (DataError, OSError) as error:
        logger.warning("who holds which classes is not noted: %s", error)


@contextmanager
def partition_noted(run_dir: Path, config: RunConfig) -> Iterator[None]:
    """Note the partition beside what is done meanwhile: it may have to load the data set."""
    noting = threading.Thread(target=note_partition, args=(run_dir, config), daemon=True)
    noting.start()
    try:
        yield
    finally:
        noting.join()


def read_partition(run_dir: Path) -> Partition | None:
    """Return what a run noted, None if it did not, or not so that it can be read."""
    try:
        read = from_json(Partition, json.loads((run_dir / PARTITION).read_bytes()))
    except (OSError, ValueError, RecursionError, JsonTypeError):
        return None
    rows = read.clients.values()
    fits = {len(counts) for counts in rows} <= {len(read.classes)}
    return read if fits and read.classes and all(n >= 0 for row in rows for n in row) else None
