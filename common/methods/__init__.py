"""The methods, one file each."""

from collections.abc import Mapping
from typing import Any

from common.methods.afl import AFL
from common.methods.base import LocalRule, Method
from common.methods.craft import Craft
from common.methods.ditto import Ditto
from common.methods.fedadam import FedAdam
from common.methods.fedavg import FedAvg
from common.methods.feddyn import FedDyn
from common.methods.fedfv import FedFV
from common.methods.fedheal import FedHEAL
from common.methods.fedlf import FedLF
from common.methods.fedmgda import FedMGDA
from common.methods.fednova import FedNova
from common.methods.fedpcd import FedPCD
from common.methods.fedprox import FedProx
from common.methods.fedpvr import FedPVR
from common.methods.fedpw import FedPW
from common.methods.krum import Krum
from common.methods.median import Median
from common.methods.qffl import QFFL
from common.methods.scaffold import Scaffold
from common.methods.trimmed_mean import TrimmedMean

METHODS: Mapping[str, type[Method[Any]]] = {
    "afl": AFL,
    "craft": Craft,
    "ditto": Ditto,
    "fedadam": FedAdam,
    "fedavg": FedAvg,
    "feddyn": FedDyn,
    "fedfv": FedFV,
    "fedheal": FedHEAL,
    "fedlf": FedLF,
    "fedmgda": FedMGDA,
    "fednova": FedNova,
    "fedpcd": FedPCD,
    "fedprox": FedProx,
    "fedpvr": FedPVR,
    "fedpw": FedPW,
    "krum": Krum,
    "median": Median,
    "qffl": QFFL,
    "scaffold": Scaffold,
    "trimmedmean": TrimmedMean,
}

__all__ = [
    "AFL",
    "METHODS",
    "QFFL",
    "Craft",
    "Ditto",
    "FedAdam",
    "FedAvg",
    "FedDyn",
    "FedFV",
    "FedHEAL",
    "FedLF",
    "FedMGDA",
    "FedNova",
    "FedPCD",
    "FedPVR",
    "FedPW",
    "FedProx",
    "Krum",
    "LocalRule",
    "Median",
    "Method",
    "Scaffold",
    "TrimmedMean",
]
