"""Data: sources, partitions, splits, batches. `common.data.batches` is the only one with torch."""

from common.data.dataset import Dataset
from common.data.folders import FolderOptions
from common.data.partition import PARTITIONS, PartitionOptions, deal
from common.data.sources import load
from common.data.splits import Split, federate, split_client

__all__ = [
    "PARTITIONS",
    "Dataset",
    "FolderOptions",
    "PartitionOptions",
    "Split",
    "deal",
    "federate",
    "load",
    "split_client",
]
