"""What one client has: its samples, its model, its device. Built once per process and kept."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from client_app.device import Device, choose_device
from common.config import DataConfig, RunConfig, parse
from common.data import Dataset, FolderOptions, PartitionOptions, Split, federate, load
from common.errors import ClientError
from common.models import FlatModel, build

_thread = threading.local()
_lock = threading.Lock()


@dataclass(frozen=True)
class Local:
    """One client's side of a run."""

    client: str
    config: RunConfig
    data: Dataset
    split: Split
    device: Device

    @property
    def flat(self) -> FlatModel:
        """This thread's model; clients that run side by side must not share one."""
        key = (self.config.model, self.data.shape, len(self.data.classes), self.device.name)
        if getattr(_thread, "key", None) != key:
            torch.set_num_threads(self.config.train.threads)
            model = build(self.config.model, self.data.shape, len(self.data.classes), seed=0)
            _thread.flat = FlatModel(model, self.device.name)
            _thread.key = key
        flat: FlatModel = _thread.flat
        return flat


def local_of(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> Local:
    """Return the client of a node.

    Raises:
        ConfigError, DataError: the run config or the data cannot be used.
        ClientError: the node does not say which partition it holds, or has no such device.
    """
    config = _parsed(tuple(sorted(run_config.items())))
    number, total = node_config.get("partition-id"), node_config.get("num-partitions")
    if not isinstance(number, int) or not isinstance(total, int) or not 0 <= number < total:
        raise ClientError(
            "the node config needs partition-id and num-partitions with 0 <= partition-id < "
            f"num-partitions, got {dict(node_config)}"
        )
    if total != config.clients:
        raise ClientError(
            f"the run is for {config.clients} clients, but there are {total} nodes: start "
            f'{config.clients} (flwr run: --federation-config "num-supernodes={config.clients}"), '
            f"or set the run config's clients={total}"
        )
    with _lock:  # clients that start together load the data once
        data = dataset_of(config.data)
        splits = _splits(config.data, config.clients, config.seed)
    return Local(str(number), config, data, splits[number], choose_device(config.train.device))


@lru_cache(maxsize=4)
def _parsed(flat: tuple[tuple[str, Any], ...]) -> RunConfig:
    return parse(dict(flat))


@lru_cache(maxsize=2)
def dataset_of(config: DataConfig) -> Dataset:
    """Load a run's data set, once per process."""
    root = Path(config.root) if config.root else None
    return load(
        config.name,
        root,
        download=config.download,
        folder=FolderOptions(size=config.image_size or None),
    )


@lru_cache(maxsize=2)
def _splits(config: DataConfig, clients: int, seed: int) -> list[Split]:
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
