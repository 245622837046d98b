"""The data sets that FedKeel knows by name."""

from common.data.sources.registry import CLASSES, FOLDER, OWN, SOURCES, data_root, load

__all__ = ["CLASSES", "FOLDER", "OWN", "SOURCES", "data_root", "load"]
