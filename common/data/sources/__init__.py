"""The data sets that FedKeel knows by name."""

from common.data.sources.registry import FOLDER, OWN, SOURCES, data_root, load

__all__ = ["FOLDER", "OWN", "SOURCES", "data_root", "load"]
