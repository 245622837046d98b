"""Counts the classes of each client's training samples, in runs that partition a data set."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from common.config import RunConfig
from common.errors import DataError
from common.federated_data import dataset_of, splits_of
from common.runs.class_counts import ClassCounts, write_class_counts

logger = logging.getLogger("flwr")


def count_classes(config: RunConfig) -> ClassCounts:
    """Return the number of training samples of each client by class.

    Raises:
        DataError: the data set cannot be loaded or partitioned.
    """
    data = dataset_of(config.data)
    splits = splits_of(config.data, config.clients, config.seed)
    counts = [np.bincount(data.labels[s.train], minlength=len(data.classes)) for s in splits]
    return ClassCounts(list(data.classes), {str(k): c.tolist() for k, c in enumerate(counts)})


def save_class_counts(run_dir: Path, config: RunConfig) -> None:
    """Write `partition.json`. Log a warning if this machine does not have the data."""
    try:
        write_class_counts(run_dir, count_classes(config))
    except (DataError, OSError) as error:
        logger.warning("partition.json is not written: %s", error)


@contextmanager
def saving_class_counts(run_dir: Path, config: RunConfig) -> Iterator[None]:
    """Write `partition.json` in a thread during the block, because loading the data may be slow."""
    thread = threading.Thread(target=save_class_counts, args=(run_dir, config), daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
