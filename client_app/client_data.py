"""A client's samples, model and device, loaded once per process."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from client_app.device import Device, choose_device
from common.config import RunConfig, parse
from common.config_groups import DataConfig
from common.data import (
    FOLDER,
    OWN,
    Dataset,
    Split,
    load_folder,
    own_options,
    split_own,
)
from common.errors import ClientError
from common.federated_data import dataset_of, splits_of
from common.malloc import keep_freed_memory
from common.models import FlatModel, build

_thread = threading.local()
_lock = threading.Lock()


@dataclass(frozen=True)
class ClientData:
    """One client's side of a run.

    Attributes:
        client_id: the id that the server uses. Without one, the partition.
        partition: the number of its part of a partitioned data set, "" without one.
        config: the run config.
        data: all samples on this machine.
        split: the indices of this client's samples.
        device: where it trains.
        storage: the node's folder for files that outlive a run, "" without one.
    """

    client_id: str
    partition: str
    config: RunConfig
    data: Dataset
    split: Split
    device: Device
    storage: str = ""

    @property
    def flat(self) -> FlatModel:
        """The model of this thread. Clients in parallel threads must not share one."""
        key = (self.config.model, self.data.shape, len(self.data.classes), self.device.name)
        if getattr(_thread, "key", None) != key:
            keep_freed_memory()
            torch.set_num_threads(self.config.train.threads)
            model = build(self.config.model, self.data.shape, len(self.data.classes), seed=0)
            _thread.flat = FlatModel(model, self.device.name)
            _thread.key = key
        flat: FlatModel = _thread.flat
        return flat


def load_client_data(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any], client_id: str = ""
) -> ClientData:
    """Return the client of a node.

    Keys of the node config:

    - `data`: folder of the client's own images, or of the files of a partitioned data set.
    - `partition-id`, `num-partitions`: the client's part of a partitioned data set.
    - `keep`: folder for files that outlive a run.

    Args:
        run_config: the config of the run, from the server.
        node_config: the config that this node was started with.
        client_id: the id that the server uses for this client, "" without one.

    Raises:
        ConfigError, DataError: the run config or the data cannot be used.
        ClientError: the node config does not name the data, or there is no such device.
    """
    config = _parsed(tuple(sorted(run_config.items())))
    partition = str(node_config.get("partition-id", ""))
    data_path = str(node_config.get("data", ""))
    client_id = client_id or partition
    with _lock:  # threads that start together load the data once
        if config.data.name == OWN:
            data, split = _own_images(config, data_path, client_id)
        else:
            data, split = _partitioned(config, data_path, node_config)
    storage = str(node_config.get("keep", ""))
    device = choose_device(config.train.device)
    return ClientData(client_id, partition, config, data, split, device, storage)


def _own_images(config: RunConfig, data_path: str, client_id: str) -> tuple[Dataset, Split]:
    if not data_path:
        raise ClientError(
            f'the run uses the clients\' own images (data.name="{OWN}"), but this node does not '
            "say where its images are: join with `fedkeel join --data FOLDER` "
            '(flower-supernode: --node-config data="FOLDER")'
        )
    data = load_own_images(config.data, data_path)
    split = split_own(
        data,
        seed=config.seed,
        client=client_id,
        test_fraction=config.data.test_fraction,
        calibration_fraction=config.data.calibration_fraction,
        min_test=config.data.min_test,
    )
    return data, split


def _partitioned(
    config: RunConfig, data_path: str, node_config: Mapping[str, Any]
) -> tuple[Dataset, Split]:
    number, total = node_config.get("partition-id"), node_config.get("num-partitions")
    if not isinstance(number, int) or not isinstance(total, int) or not 0 <= number < total:
        raise ClientError(
            f"the run partitions the data set {config.data.name} over its clients, so the node "
            "config needs partition-id and num-partitions with 0 <= partition-id < "
            f"num-partitions, got {number} and {total}; for clients with their own images "
            f'(fedkeel join --data FOLDER) start the run with data.name="{OWN}"'
        )
    if total != config.clients:
        raise ClientError(
            f"the run is for {config.clients} clients, but there are {total} nodes: start "
            f'{config.clients} (flwr run: --federation-config "num-supernodes={config.clients}"), '
            f"or set the run config's clients={total}"
        )
    data_config = config.data
    if data_path:  # data.root and folder:PATH are paths on the machine that started the run
        is_folder = data_config.name.startswith(FOLDER)
        name = f"{FOLDER}{data_path}" if is_folder else data_config.name
        data_config = replace(data_config, root=data_path, name=name)
    splits = splits_of(data_config, config.clients, config.seed)
    return dataset_of(data_config), splits[number]


@lru_cache(maxsize=4)
def _parsed(flat: tuple[tuple[str, Any], ...]) -> RunConfig:
    return parse(dict(flat))


@lru_cache(maxsize=64)  # memory maps take little memory
def load_own_images(config: DataConfig, path: str) -> Dataset:
    """Load a client's own images with the federation's classes and size, once per process."""
    options = own_options(config.class_names, config.image_size, config.channels, config.max_bad)
    return load_folder(Path(path).expanduser(), options)
