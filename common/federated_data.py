"""The data set of a run and its partition, loaded once per process."""

from functools import lru_cache
from pathlib import Path

from common.config_groups import DataConfig
from common.data import Dataset, FolderOptions, PartitionOptions, Split, federate, load


@lru_cache(maxsize=2)
def dataset_of(config: DataConfig) -> Dataset:
    """Load a run's data set, once per process.

    Raises:
        DataError: the data set is missing or cannot be used.
    """
    root = Path(config.root).expanduser() if config.root else None
    return load(
        config.name,
        root,
        download=config.download,
        folder=FolderOptions(size=config.image_size or None, max_bad=config.max_bad),
    )


@lru_cache(maxsize=2)
def splits_of(config: DataConfig, clients: int, seed: int) -> list[Split]:
    """Partition a run's data set over its clients. The k-th split belongs to partition k.

    Raises:
        DataError: the data set cannot be loaded, or not partitioned like this.
    """
    return federate(
        dataset_of(config),
        partition=config.partition,
        clients=clients,
        seed=seed,
        options=PartitionOptions(
            alpha=config.alpha,
            shards_per_client=config.shards_per_client,
            min_size=config.min_size or None,
            equal_slices=config.equal_slices,
        ),
        test_fraction=config.test_fraction,
        calibration_fraction=config.calibration_fraction,
        min_test=config.min_test,
    )
