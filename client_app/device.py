"""The device that a client trains on."""

import os
from dataclasses import dataclass

import torch

from common.errors import ClientError


@dataclass(frozen=True)
class Device:
    """A torch device, and a description of it for log lines."""

    name: str
    description: str


def choose_device(wanted: str) -> Device:
    """Return the device for train.device: "auto", "cpu" or "cuda".

    Raises:
        ClientError: train.device is cuda, but this process sees no GPU. The message says why.
    """
    if wanted == "cpu":
        return Device("cpu", "trains on the CPU, as asked")
    if torch.cuda.is_available():
        return Device("cuda", f"trains on the GPU {torch.cuda.get_device_name()}")
    why = why_no_gpu()
    if wanted == "cuda":
        raise ClientError(
            f"train.device is cuda, but this client sees no GPU: {why}; "
            "set train.device to auto or cpu, or make the GPU visible"
        )
    return Device("cpu", f"trains on the CPU: {why}")


def why_no_gpu() -> str:
    """Return the most likely reason why torch sees no GPU."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset") in ("", "-1"):
        return (
            "CUDA_VISIBLE_DEVICES hides them all (in simulation: client-resources-num-gpus is 0; "
            "with the fedkeel command: --client-gpus)"
        )
    return "no GPU, or no NVIDIA driver that fits this torch"
