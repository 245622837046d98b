"""What one client has: its samples, its model, its device. Built once per process and kept."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from client_app.device import Device, choose_device
from common.config import DataConfig, RunConfig, parse
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
        client_id: the id that the server calls it by; where it told none, the partition.
        partition: the number of its part of a dealt data set, "" if it has none.
        config: the run config.
        data: all samples on this machine.
        split: which of them are this client's.
        device: where it trains.
        storage: a folder of the node's own that it may keep things in, "" if it has none.
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
        """This thread's model; clients that run side by side must not share one."""
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

    The node config says where the data are on this machine: `data` is a folder, of the client's
    own pictures or of the files of a data set that is dealt; `partition-id` and `num-partitions`
    say which part of a dealt one is this client's; `keep` is a folder of the node's own.

    Args:
        run_config: as the server started the run.
        node_config: as this node was started.
        client_id: the id that the server calls this client by; "" where it has not said.

    Raises:
        ConfigError, DataError: the run config or the data cannot be used.
        ClientError: the node does not say which data it holds, or has no such device.
    """
    config = _parsed(tuple(sorted(run_config.items())))
    partition = str(node_config.get("partition-id", ""))
    place = str(node_config.get("data", ""))
    client_id = client_id or partition
    with _lock:  # clients that start together load the data once
        if config.data.name == OWN:
            data, split = _own(config, place, client_id)
        else:
            data, split = _dealt(config, place, node_config)
    keep = str(node_config.get("keep", ""))
    return ClientData(
        client_id, partition, config, data, split, choose_device(config.train.device), keep
    )


def _own(config: RunConfig, place: str, client_id: str) -> tuple[Dataset, Split]:
    if not place:
        raise ClientError(
            f'the run is for clients with pictures of their own (data.name="{OWN}"), but this '
            "node does not say where its pictures are: join with `fedkeel join --data FOLDER` "
            '(flower-supernode: --node-config data="FOLDER")'
        )
    data = load_own_images(config.data, place)
    split = split_own(
        data,
        seed=config.seed,
        client=client_id,
        test_fraction=config.data.test_fraction,
        calibration_fraction=config.data.calibration_fraction,
        min_test=config.data.min_test,
    )
    return data, split


def _dealt(config: RunConfig, place: str, node_config: Mapping[str, Any]) -> tuple[Dataset, Split]:
    number, total = node_config.get("partition-id"), node_config.get("num-partitions")
    if not isinstance(number, int) or not isinstance(total, int) or not 0 <= number < total:
        raise ClientError(
            f"the run deals the data set {config.data.name} to its clients, so the node config "
            "needs partition-id and num-partitions with 0 <= partition-id < num-partitions, got "
            f"{number} and {total}; for clients with pictures of their own (fedkeel join --data "
            f'FOLDER) start the run with data.name="{OWN}"'
        )
    if total != config.clients:
        raise ClientError(
            f"the run is for {config.clients} clients, but there are {total} nodes: start "
            f'{config.clients} (flwr run: --federation-config "num-supernodes={config.clients}"), '
            f"or set the run config's clients={total}"
        )
    here = config.data
    if place:  # data.root and folder:PATH are places on the machine that started the run
        is_folder = here.name.startswith(FOLDER)
        here = replace(here, root=place, name=f"{FOLDER}{place}" if is_folder else here.name)
    return dataset_of(here), splits_of(here, config.clients, config.seed)[number]


@lru_cache(maxsize=4)
def _parsed(flat: tuple[tuple[str, Any], ...]) -> RunConfig:
    return parse(dict(flat))


@lru_cache(maxsize=64)  # memory maps, and small
def load_own_images(config: DataConfig, place: str) -> Dataset:
    """Load a client's own pictures as the federation wants them, once per process."""
    options = own_options(config.class_names, config.image_size, config.channels, config.max_bad)
    return load_folder(Path(place).expanduser(), options)
