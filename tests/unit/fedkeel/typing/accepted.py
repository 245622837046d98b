"""A user's program that `mypy --strict` accepts."""

import numpy as np

import fedkeel
from fedkeel import AFL, FedAdam, FedAvg, FedNova, FedPCD, FedPVR, RunResult

strategies = [
    FedPCD(tau=0.02, history=10, fraction_train=0.1),
    FedPVR(block="fc", max_void_rounds=2),
    FedAvg(seed=3),
    FedAdam(eta=0.01, beta1=0.9),
    FedNova(uniform=True),
    AFL(eta_lambda=0.1),
]

result: RunResult = fedkeel.run("fedpcd", settings={"rounds": 2}, engine="inline", out="runs")
last: float | None = result.rounds[-1].mean
columns: dict[str, list[float]] = result.to_dict()["rounds"]
results: dict[str, RunResult] = fedkeel.compare(["fedavg", "fedpcd"], settings={})
point = fedkeel.project_onto_halfspaces(np.ones(2), np.eye(2), np.zeros(2)).point
scores: fedkeel.Fairness | None = fedkeel.fairness({"a": (1, 2)})
version: str = fedkeel.__version__
