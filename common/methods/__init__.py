"""The methods, one file each."""

from collections.abc import Mapping
from typing import Any

from common.methods.base import LocalRule, Method
from common.methods.fedavg import FedAvg
from common.methods.fedpcd import FedPCD
from common.methods.fedprox import FedProx
from common.methods.fedpvr import FedPVR
from common.methods.scaffold import Scaffold

METHODS: Mapping[str, type[Method[Any]]] = {
    "fedavg": FedAvg,
    "fedpcd": FedPCD,
    "fedprox": FedProx,
    "fedpvr": FedPVR,
    "scaffold": Scaffold,
}

__all__ = ["METHODS", "FedAvg", "FedPCD", "FedPVR", "FedProx", "LocalRule", "Method", "Scaffold"]
