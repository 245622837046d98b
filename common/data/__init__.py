"""Data: sources, partitions, splits and batches. Only `image_batches` imports torch."""

from common.data.dataset import Dataset
from common.data.image_folder import (
    FolderOptions,
    FolderReport,
    inspect_folder,
    load_folder,
    own_options,
)
from common.data.partition import PARTITIONS, PartitionOptions, deal
from common.data.sources import FOLDER, OWN, load
from common.data.splits import Split, federate, split_client, split_own

__all__ = [
    "FOLDER",
    "OWN",
    "PARTITIONS",
    "Dataset",
    "FolderOptions",
    "FolderReport",
    "PartitionOptions",
    "Split",
    "deal",
    "federate",
    "inspect_folder",
    "load",
    "load_folder",
    "own_options",
    "split_client",
    "split_own",
]
