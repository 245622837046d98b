"""Counts the classes of each client's training samples, in runs that partition a data set."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from common.config import RunConfig
from common.data.facts import facts_of
from common.errors import DataError
from common.federated_data import dataset_of, splits_of
from common.runs.class_counts import ClassCounts, read_class_counts, write_class_counts

logger = logging.getLogger("flwr")


def count_classes(config: RunConfig) -> ClassCounts:
    """Return the number of training samples of each client by class.

    Raises:
        DataError: the data set cannot be loaded or partitioned.
    """
    data = dataset_of(config.data)
    splits = splits_of(config.data, config.clients, config.seed)
    counts = [np.bincount(data.labels[s.train], minlength=len(data.classes)) for s in splits]
    by_client = {str(k): c.tolist() for k, c in enumerate(counts)}
    return ClassCounts(list(data.classes), by_client, facts_of(data, splits))


def refuse_changed_data(run_dir: Path, config: RunConfig) -> None:
    """Check that a resumed run has the data with which it was started.

    With other data every sample could change its part, and samples for training would be used for
    testing.

    Raises:
        DataError: the data have changed, or cannot be loaded.
    """
    before = read_class_counts(run_dir)
    if before is None or before.data is None:
        return
    now = count_classes(config).data
    assert now is not None, "count_classes describes the data"
    if now.digest != before.data.digest:
        raise DataError(
            f"the data of this run have changed: it was started with {before.data.samples} samples "
            f"(digest {before.data.digest}), and {now.name} has {now.samples} now (digest "
            f"{now.digest}). The samples would be dealt anew, and some that were trained on would "
            "be tested on. Restore the data, or start a new run under another name"
        )


def save_class_counts(run_dir: Path, config: RunConfig) -> None:
    """Write `partition.json`. Log a warning if this machine does not have the data."""
    try:
        counts = count_classes(config)
        for sentence in counts.data.sentences if counts.data else ():
            logger.info(sentence)
        write_class_counts(run_dir, counts)
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
